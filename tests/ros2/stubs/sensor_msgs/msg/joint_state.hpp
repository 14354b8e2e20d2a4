/* The members of the ROS 2 message that ros2/src uses. */
#pragma once
#include <rclcpp/rclcpp.hpp>
namespace sensor_msgs::msg {
struct JointState {
    using ConstSharedPtr = std::shared_ptr<const JointState>;
    std_msgs::msg::Header header;
    std::vector<std::string> name;
    std::vector<double> position, velocity, effort;
};
} // namespace sensor_msgs::msg
