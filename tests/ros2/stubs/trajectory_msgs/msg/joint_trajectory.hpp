/* The members of the ROS 2 message that ros2/src uses. */
#pragma once
#include <rclcpp/rclcpp.hpp>
namespace trajectory_msgs::msg {
struct JointTrajectoryPoint {
    std::vector<double> positions;
    builtin_interfaces::msg::Duration time_from_start;
};
struct JointTrajectory {
    std_msgs::msg::Header header;
    std::vector<std::string> joint_names;
    std::vector<JointTrajectoryPoint> points;
};
} // namespace trajectory_msgs::msg
