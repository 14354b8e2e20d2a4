/* ros2/src/node.hpp over stubs of rclcpp's names, with a tiny model: pictures and joint states in, actions
 * and diagnostics out. What a real rclcpp does with them is not shown here. tests/scripts/ros2.sh compiles
 * it. */
#include "node.hpp"

#include <cstdlib>
#include <thread>

namespace {

void check(bool holds, const char *what, int line) {
    if (holds) return;
    std::fprintf(stderr, "node.cpp:%d: not so: %s\n", line, what);
    for (const auto &said : stub::the->logged) std::fprintf(stderr, "  %s\n", said.c_str());
    std::exit(1);
}
#define CHECK(holds) check((holds), #holds, __LINE__)

constexpr unsigned side = 8;
int shade = 0;

std::shared_ptr<const sensor_msgs::msg::Image> picture(const char *encoding = "bgr8") {
    auto made = std::make_shared<sensor_msgs::msg::Image>();
    made->height = made->width = side;
    made->encoding = encoding;
    made->step = side * 3 + 8; /* rows with padding                                           */
    made->data.assign(std::size_t{made->step} * side, static_cast<std::uint8_t>(60 + ++shade % 100));
    return made;
}

void send_state(const openpi_ros::texts &names) {
    auto made = std::make_shared<sensor_msgs::msg::JointState>();
    made->name = names;
    made->position.assign(names.size(), 0.25);
    stub::the->topics.at("joint_states")(made);
}

openpi_ros::texts joint_names(int count) {
    openpi_ros::texts names;
    for (int i = 0; i < count; i++) names.push_back("joint" + std::to_string(i));
    return names;
}

const diagnostic_msgs::msg::DiagnosticStatus &diagnosed() {
    stub::the->timers.at(1)();
    const auto &last = stub::the->published.at("/diagnostics").back();
    return static_cast<const diagnostic_msgs::msg::DiagnosticArray *>(last.get())->status.at(0);
}

std::string value_of(const diagnostic_msgs::msg::DiagnosticStatus &status, const std::string &key) {
    for (const auto &one : status.values)
        if (one.key == key) return one.value;
    return "?";
}

stub::world parameters(const char *robot, std::map<std::string, stub::value> more) {
    stub::world world;
    world.parameters = {{"synthetic", std::string("tiny")},
                        {"robot", std::string(robot)},
                        {"steps", std::int64_t{1}},
                        {"prompt", std::string("go")}};
    for (auto &one : more) world.parameters[one.first] = one.second;
    return world;
}

/* Until the robot has moved `steps` steps; cameras and joints are there all the time. */
void move(openpi_ros::node &node, const openpi_ros::texts &topics, const openpi_ros::texts &names,
          unsigned steps) {
    while (node.robot().info()->steps < steps) {
        for (const auto &topic : topics) stub::the->topics.at(topic)(picture());
        send_state(names);
        stub::the->timers.at(0)();
        std::this_thread::yield();
    }
}

void arrays() {
    auto world = parameters("droid", {{"cameras", openpi_ros::texts{"observation/wrist_image_left=/wrist"}},
                                      {"joints", joint_names(8)}});
    stub::the = &world;
    openpi_ros::node node{rclcpp::NodeOptions()};
    const openpi_ros::texts topics = {"observation/exterior_image_1_left/image", "/wrist"};
    auto names = joint_names(8);
    std::reverse(names.begin(), names.end());
    CHECK(world.periods.at(0) == std::chrono::nanoseconds(1000000000 / 15));
    stub::the->timers.at(0)();
    CHECK(world.published["~/action"].empty());
    CHECK(diagnosed().level == diagnosed().WARN &&
          diagnosed().message == openpi_reason_text(OPENPI_REASON_STARTING));
    world.topics.at("/wrist")(picture("mono16"));
    CHECK(value_of(diagnosed(), "complaint").find("/wrist has \"mono16\"") == 0);
    world.topics.at("/wrist")(picture());
    send_state({"joint0"}); /* a joint is missing, and no picture of the other camera      */
    CHECK(value_of(diagnosed(), "complaint").find("no position of \"joint1\"") != std::string::npos);
    move(node, topics, names, 12);
    const auto &last = world.published.at("~/action").back();
    const auto &action = static_cast<const std_msgs::msg::Float64MultiArray *>(last.get())->data;
    CHECK(action.size() == 8);
    for (const double number : action) CHECK(std::isfinite(number));
    CHECK(value_of(diagnosed(), "failure").empty());
    world.services.at("~/stop")();
    stub::the->timers.at(0)();
    CHECK(diagnosed().level == diagnosed().ERROR &&
          diagnosed().message == openpi_reason_text(OPENPI_REASON_ASKED));
    world.services.at("~/resume")();
    move(node, topics, names, 24);
}

/* One camera stands still: the same picture, whatever the joints do. */
void a_camera_stands_still() {
    auto world = parameters(
        "droid", {{"joints", joint_names(8)}, {"max_age_ms", 100000.0}, {"frozen_after", std::int64_t{3}}});
    stub::the = &world;
    openpi_ros::node node{rclcpp::NodeOptions()};
    const openpi_ros::texts topics = {"observation/exterior_image_1_left/image",
                                      "observation/wrist_image_left/image"};
    move(node, topics, joint_names(8), 8);
    while (diagnosed().message != openpi_reason_text(OPENPI_REASON_FROZEN_CAMERA)) {
        world.topics.at(topics[0])(picture());
        send_state(joint_names(8));
        stub::the->timers.at(0)();
        std::this_thread::yield();
    }
    CHECK(value_of(diagnosed(), "camera") == "observation/wrist_image_left");
}

void trajectories() {
    auto world = parameters(
        "aloha",
        {{"action", std::string("trajectory")}, {"joints", joint_names(14)}, {"rtc", std::string("guided")}});
    stub::the = &world;
    openpi_ros::node node{rclcpp::NodeOptions()};
    openpi_ros::texts topics;
    for (const auto &topic : world.topics)
        if (topic.first != "joint_states") topics.push_back(topic.first);
    move(node, topics, joint_names(14), 12);
    const auto &last = world.published.at("~/action").back();
    const auto &way = *static_cast<const trajectory_msgs::msg::JointTrajectory *>(last.get());
    CHECK(way.joint_names == joint_names(14) && way.points.size() == 1 &&
          way.points[0].positions.size() == 14);
    CHECK(way.points[0].time_from_start.sec == 0 && way.points[0].time_from_start.nanosec == 20000000);
}

void refused(std::map<std::string, stub::value> more, const char *sentence, const char *robot = "droid") {
    auto world = parameters(robot, std::move(more));
    stub::the = &world;
    try {
        openpi_ros::node node{rclcpp::NodeOptions()};
    } catch (const std::exception &why) {
        if (std::string(why.what()).find(sentence) != std::string::npos) return;
        std::fprintf(stderr, "refused with: %s\n", why.what());
    }
    CHECK(!sentence);
}

} // namespace

int main() {
    arrays();
    a_camera_stands_still();
    trajectories();
    refused({{"rtc", std::string("always")}},
            "the parameter rtc is \"always\", expected \"guided\", \"off\", \"trained\"");
    refused({{"cameras", openpi_ros::texts{"wrist=/wrist"}}}, "expected KEY=TOPIC with a KEY of the robot");
    refused({{"action", std::string("trajectory")}, {"joints", joint_names(8)}},
            "of the robot is a velocity");
    refused({{"action", std::string("trajectory")}, {"joints", joint_names(3)}}, "has 3 names, expected 8");
    refused({{"synthetic", std::string()}}, "expected one of the parameters checkpoint and synthetic");
    refused({{"synthetic", std::string("tony")}}, "tony");
    return 0;
}
