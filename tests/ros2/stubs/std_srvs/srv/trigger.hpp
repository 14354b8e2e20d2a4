/* The members of the ROS 2 message that ros2/src uses. */
#pragma once
#include <rclcpp/rclcpp.hpp>
namespace std_srvs::srv {
struct Trigger {
    struct Request {};
    struct Response {
        bool success = false;
        std::string message;
    };
};
} // namespace std_srvs::srv
