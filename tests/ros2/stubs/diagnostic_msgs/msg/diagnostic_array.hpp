/* The members of the ROS 2 message that ros2/src uses. */
#pragma once
#include <rclcpp/rclcpp.hpp>
namespace diagnostic_msgs::msg {
struct KeyValue {
    std::string key, value;
};
struct DiagnosticStatus {
    static constexpr std::uint8_t OK = 0, WARN = 1, ERROR = 2;
    std::uint8_t level = 0;
    std::string name, message, hardware_id;
    std::vector<KeyValue> values;
};
struct DiagnosticArray {
    std_msgs::msg::Header header;
    std::vector<DiagnosticStatus> status;
};
} // namespace diagnostic_msgs::msg
