/* openpi_node: see node.hpp. */
#include "node.hpp"

#include <cstdio>

int main(int argc, char **argv) {
    rclcpp::init(argc, argv);
    int status = 0;
    try {
        auto node = std::make_shared<openpi_ros::node>(rclcpp::NodeOptions());
        /* One thread for what comes in, one for the actions. */
        rclcpp::executors::MultiThreadedExecutor executor(rclcpp::ExecutorOptions(), 2);
        executor.add_node(node);
        executor.spin();
    } catch (const std::exception &why) {
        std::fprintf(stderr, "openpi_node: %s\n", why.what());
        status = 1;
    }
    rclcpp::shutdown();
    return status;
}
