/* The members of the ROS 2 message that ros2/src uses. */
#pragma once
#include <rclcpp/rclcpp.hpp>
namespace std_msgs::msg {
struct Float64MultiArray {
    std::vector<double> data;
};
} // namespace std_msgs::msg
