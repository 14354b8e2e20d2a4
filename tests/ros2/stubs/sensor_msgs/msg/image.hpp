/* The members of the ROS 2 message that ros2/src uses. */
#pragma once
#include <rclcpp/rclcpp.hpp>
namespace sensor_msgs::msg {
struct Image {
    using ConstSharedPtr = std::shared_ptr<const Image>;
    std_msgs::msg::Header header;
    std::uint32_t height = 0, width = 0;
    std::string encoding;
    std::uint8_t is_bigendian = 0;
    std::uint32_t step = 0;
    std::vector<std::uint8_t> data;
};
} // namespace sensor_msgs::msg
