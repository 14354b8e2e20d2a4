/* A policy as a ROS 2 node: newest pictures and joint state to a runner (openpi.hpp), its action at the
 * robot's rate to a topic, why it holds or has stopped to /diagnostics. README.md has topics and parameters.
 *
 * Pictures are not copied: the runner keeps the message until it is done with it. An observation is as old as
 * its oldest part came in, so that one camera that stands still holds the robot, whatever the others do.
 *
 * Threads: topics and services in one callback group, the timer that gives actions in another. */
#ifndef OPENPI_ROS_NODE_HPP
#define OPENPI_ROS_NODE_HPP

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <diagnostic_msgs/msg/diagnostic_array.hpp>
#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/image.hpp>
#include <sensor_msgs/msg/joint_state.hpp>
#include <std_msgs/msg/float64_multi_array.hpp>
#include <std_srvs/srv/trigger.hpp>
#include <trajectory_msgs/msg/joint_trajectory.hpp>

#include <openpi.hpp>

namespace openpi_ros {

using image_message = sensor_msgs::msg::Image;
using state_message = sensor_msgs::msg::JointState;
using texts = std::vector<std::string>;
using request_pointer = std::shared_ptr<std_srvs::srv::Trigger::Request>;
using answer_pointer = std::shared_ptr<std_srvs::srv::Trigger::Response>;

/* Milliseconds of the runner's clock: never goes back, whatever /use_sim_time says. */
inline double now_ms() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(since).count();
}

/* What a call gave, or its sentence as an exception. */
template <class T> T take(openpi::result<T> &&made) {
    if (!made) throw std::runtime_error(made.sentence());
    return made.take();
}

/* "rgb8" and its like; false: openpi takes no such pixels. */
inline bool read_encoding(const std::string &encoding, openpi_channels *channels, unsigned *bytes) {
    static const std::map<std::string, std::pair<openpi_channels, unsigned>> known = {
        {"rgb8", {OPENPI_RGB, 3}},
        {"bgr8", {OPENPI_BGR, 3}},
        {"rgba8", {OPENPI_RGBA, 4}},
        {"bgra8", {OPENPI_BGRA, 4}}};
    const auto found = known.find(encoding);
    if (found == known.end()) return false;
    *channels = found->second.first;
    *bytes = found->second.second;
    return true;
}

/* A camera of the policy and its newest picture. */
struct camera {
    std::string key, topic;
    image_message::ConstSharedPtr newest;
    double came_ms = 0;
    rclcpp::Subscription<image_message>::SharedPtr subscription;
};

class node : public rclcpp::Node {
  public:
    explicit node(const rclcpp::NodeOptions &options) : rclcpp::Node("openpi", options) {
        prompt = declare_parameter<std::string>("prompt", "");
        joints = declare_parameter<texts>("joints", texts());
        action_joints = declare_parameter<texts>("action_joints", texts());
        open_policy();
        open_runner();
        find_actions();
        find_cameras(declare_parameter<texts>("cameras", texts()));
        connect();
    }

    const openpi::runner &robot() const { return runner; }

  private:
    /* ---- opening ------------------------------------------------------------------------------------- */

    void open_policy() {
        const auto checkpoint = declare_parameter<std::string>("checkpoint", "");
        const auto robot = declare_parameter<std::string>("robot", "");
        const auto device = declare_parameter<std::string>("device", "");
        const auto synthetic = declare_parameter<std::string>("synthetic", "");
        const int steps = static_cast<int>(declare_parameter<std::int64_t>("steps", 0));
        openpi::synthetic made_up;
        openpi::engine_options of_engine;
        openpi::policy_options of_policy;
        if (checkpoint.empty() == synthetic.empty())
            throw std::runtime_error("expected one of the parameters checkpoint and synthetic");
        if (!synthetic.empty()) {
            const auto parsed = openpi::outcome::of(openpi_synthetic_parse, synthetic.c_str(),
                                                    static_cast<openpi_synthetic *>(&made_up));
            if (!parsed) throw std::runtime_error(parsed.sentence());
            of_engine.synthetic = of_policy.synthetic = &made_up;
        }
        if (!device.empty()) of_engine.device = device.c_str();
        if (!robot.empty()) of_policy.robot = robot.c_str();
        of_session.steps = steps;
        const char *place = checkpoint.empty() ? nullptr : checkpoint.c_str();
        engine = take(openpi::engine::open(place, of_engine));
        policy = take(openpi::policy::open(place, of_policy));
        tell_notes();
    }

    void tell_notes() {
        bool warns = false;
        for (int i = 0; const char *sentence = engine.note(i, &warns); i++)
            if (warns) RCLCPP_WARN(get_logger(), "%s", sentence);
            else RCLCPP_INFO(get_logger(), "%s", sentence);
    }

    void open_runner() {
        openpi::runner_options options;
        const auto rtc = declare_parameter<std::string>("rtc", "off");
        const auto kind = declare_parameter<std::string>("kind", "");
        options.rate_hz = declare_parameter<double>("rate_hz", 0.0);
        options.max_age_ms = declare_parameter<double>("max_age_ms", 0.0);
        options.frozen_after = static_cast<int>(declare_parameter<std::int64_t>("frozen_after", 0));
        options.rtc = choice<openpi_rtc_mode>(
            "rtc", rtc,
            {{"off", OPENPI_RTC_OFF}, {"guided", OPENPI_RTC_GUIDED}, {"trained", OPENPI_RTC_TRAINED}});
        options.kind = choice<openpi_action_kind>("kind", kind,
                                                  {{"", OPENPI_ACTION_UNKNOWN},
                                                   {"position", OPENPI_ACTION_POSITION},
                                                   {"velocity", OPENPI_ACTION_VELOCITY}});
        runner = take(openpi::runner::open(engine, policy, options, of_session));
        const auto info = take(runner.info());
        dims = static_cast<std::size_t>(info.action_dim);
        rate_hz = info.rate_hz;
    }

    template <class T>
    static T choice(const char *name, const std::string &value, const std::map<std::string, T> &known) {
        const auto found = known.find(value);
        if (found != known.end()) return found->second;
        std::string expected;
        for (const auto &one : known) expected += (expected.empty() ? "\"" : ", \"") + one.first + "\"";
        throw std::runtime_error(std::string("the parameter ") + name + " is \"" + value + "\", expected " +
                                 expected);
    }

    void find_actions() {
        const auto form = declare_parameter<std::string>("action", "array");
        as_trajectory = choice<bool>("action", form, {{"array", false}, {"trajectory", true}});
        if (!as_trajectory) return;
        if (action_joints.empty()) action_joints = joints;
        if (action_joints.size() != dims)
            throw std::runtime_error("the parameter action_joints has " +
                                     std::to_string(action_joints.size()) + " names, expected " +
                                     std::to_string(dims) + ", one an action");
        for (int i = 0; i < static_cast<int>(dims); i++)
            if (openpi_policy_action_kind(policy.get(), i) == OPENPI_ACTION_VELOCITY)
                throw std::runtime_error("the parameter action is \"trajectory\", but action " +
                                         std::to_string(i) +
                                         " of the robot is a velocity, expected \"array\"");
    }

    /* "KEY=TOPIC" each; a camera of the robot that is not among them has the topic KEY/image. */
    void find_cameras(const texts &given) {
        int slot = 0, required = 0, chw = 0;
        for (int i = 0; const char *key = openpi_policy_camera(policy.get(), i, &slot, &required, &chw); i++)
            if (*key && slot >= 0) cameras.push_back({key, std::string(key) + "/image", nullptr, 0, nullptr});
        for (const auto &one : given) {
            const auto at = one.find('=');
            const std::string key = one.substr(0, at);
            const auto found =
                std::find_if(cameras.begin(), cameras.end(), [&](const camera &c) { return c.key == key; });
            if (at == std::string::npos || found == cameras.end())
                throw std::runtime_error("the parameter cameras has \"" + one +
                                         "\", expected KEY=TOPIC with a KEY of the robot");
            found->topic = one.substr(at + 1);
        }
    }

    void connect() {
        control = create_callback_group(rclcpp::CallbackGroupType::MutuallyExclusive);
        const auto newest = rclcpp::SensorDataQoS().keep_last(1);
        for (auto &one : cameras)
            one.subscription = create_subscription<image_message>(
                one.topic, newest,
                [this, &one](image_message::ConstSharedPtr seen) { picture_came(one, std::move(seen)); });
        state_in = create_subscription<state_message>(
            "joint_states", newest, [this](state_message::ConstSharedPtr seen) { state_came(*seen); });
        if (as_trajectory)
            trajectory_out = create_publisher<trajectory_msgs::msg::JointTrajectory>("~/action", 1);
        else array_out = create_publisher<std_msgs::msg::Float64MultiArray>("~/action", 1);
        diagnostics = create_publisher<diagnostic_msgs::msg::DiagnosticArray>("/diagnostics", 10);
        stop =
            create_service<std_srvs::srv::Trigger>("~/stop", [this](request_pointer, answer_pointer answer) {
                runner.stop();
                answer->success = true;
            });
        resume = create_service<std_srvs::srv::Trigger>("~/resume",
                                                        [this](request_pointer, answer_pointer answer) {
                                                            runner.resume();
                                                            answer->success = true;
                                                        });
        const auto period =
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(1 / rate_hz));
        timer = create_wall_timer(
            period, [this] { give(); }, control);
        teller = create_wall_timer(std::chrono::seconds(1), [this] { diagnose(); });
    }

    /* ---- what comes in ------------------------------------------------------------------------------- */

    void picture_came(camera &one, image_message::ConstSharedPtr seen) {
        openpi_channels channels;
        unsigned bytes = 0;
        const bool known = read_encoding(seen->encoding, &channels, &bytes);
        if (!known || seen->step < seen->width * bytes ||
            seen->data.size() < std::size_t{seen->step} * seen->height) {
            complain(one.topic + " has \"" + seen->encoding + "\" with rows of " +
                     std::to_string(seen->step) +
                     " bytes, expected whole rows of rgb8, bgr8, rgba8 or bgra8");
            return;
        }
        one.newest = std::move(seen);
        one.came_ms = now_ms();
    }

    /* The positions of the parameter `joints`, in its order. */
    bool read_state(const state_message &seen) {
        if (joints.empty()) {
            state = seen.position;
            return true;
        }
        state.clear();
        for (const auto &name : joints) {
            const auto at = static_cast<std::size_t>(std::find(seen.name.begin(), seen.name.end(), name) -
                                                     seen.name.begin());
            if (at >= seen.name.size() || at >= seen.position.size()) {
                complain("joint_states has no position of \"" + name + "\"");
                return false;
            }
            state.push_back(seen.position[at]);
        }
        return true;
    }

    /* A joint state makes an observation with the newest pictures, once every camera has one. */
    void state_came(const state_message &seen) {
        auto pictures = std::make_shared<std::vector<image_message::ConstSharedPtr>>();
        std::vector<openpi::image> images(cameras.size());
        double taken_ms = now_ms();
        if (!read_state(seen)) return;
        for (std::size_t i = 0; i < cameras.size(); i++) {
            const auto &from = cameras[i].newest;
            unsigned bytes = 0;
            if (!from || !read_encoding(from->encoding, &images[i].channels, &bytes)) return;
            images[i].name = cameras[i].key.c_str();
            images[i].data = from->data.data();
            images[i].height = static_cast<int>(from->height);
            images[i].width = static_cast<int>(from->width);
            images[i].row_bytes = from->step;
            taken_ms = std::min(taken_ms, cameras[i].came_ms);
            pictures->push_back(from);
        }
        openpi::observation whole;
        whole.images = images.data();
        whole.image_count = static_cast<int>(images.size());
        whole.state = state.data();
        whole.state_length = static_cast<int>(state.size());
        whole.prompt = prompt.empty() ? nullptr : prompt.c_str();
        const auto given = runner.lend(whole, taken_ms, pictures);
        if (!given) complain(given.sentence());
    }

    void complain(const std::string &sentence) {
        const std::lock_guard<std::mutex> lock(telling);
        if (sentence != complaint) RCLCPP_ERROR(get_logger(), "%s", sentence.c_str());
        complaint = sentence;
    }

    /* ---- what goes out ------------------------------------------------------------------------------- */

    void give() {
        const openpi::tick tick = runner.next(now_ms());
        {
            const std::lock_guard<std::mutex> lock(telling);
            last = tick;
        }
        if (!tick.state.known) return;
        const std::vector<double> action(tick.action.begin(),
                                         tick.action.begin() + static_cast<std::ptrdiff_t>(dims));
        if (as_trajectory) give_trajectory(action);
        else {
            std_msgs::msg::Float64MultiArray message;
            message.data = action;
            array_out->publish(message);
        }
    }

    /* One point, to be reached within a period. */
    void give_trajectory(const std::vector<double> &action) {
        trajectory_msgs::msg::JointTrajectory message;
        message.joint_names = action_joints;
        message.points.resize(1);
        message.points[0].positions = action;
        message.points[0].time_from_start =
            rclcpp::Duration(std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 / rate_hz)));
        trajectory_out->publish(message);
    }

    static diagnostic_msgs::msg::KeyValue value(const char *key, const std::string &text) {
        diagnostic_msgs::msg::KeyValue pair;
        pair.key = key;
        pair.value = text;
        return pair;
    }

    void diagnose() {
        using status = diagnostic_msgs::msg::DiagnosticStatus;
        diagnostic_msgs::msg::DiagnosticArray message;
        status one;
        const auto told = runner.info();
        if (!told) return;
        {
            const std::lock_guard<std::mutex> lock(telling);
            const auto move = last.move;
            one.level = move == OPENPI_MOVE_ACTION ? status::OK
                        : move == OPENPI_MOVE_HOLD ? status::WARN
                                                   : status::ERROR;
            one.message = openpi_reason_text(last.state.reason);
            one.values = {value("age_ms", std::to_string(last.state.age_ms)), value("complaint", complaint)};
        }
        one.name = "openpi: runner";
        for (const auto &pair :
             {value("failure", told->failure), value("camera", told->camera),
              value("steps", std::to_string(told->steps)), value("held", std::to_string(told->held)),
              value("late", std::to_string(told->late)), value("limited", std::to_string(told->limited)),
              value("call_ms", std::to_string(told->call_ms))})
            one.values.push_back(pair);
        message.header.stamp = now();
        message.status.push_back(one);
        diagnostics->publish(message);
    }

    std::string prompt, complaint;
    texts joints, action_joints;
    openpi::session_options of_session;
    openpi::engine engine; /* closed after the runner, which is below                                 */
    openpi::policy policy;
    openpi::runner runner;
    std::size_t dims = 0;
    double rate_hz = 0;
    bool as_trajectory = false;
    std::vector<camera> cameras; /* its places are fixed once subscriptions name them                       */
    std::vector<double> state;
    std::mutex telling;
    openpi::tick last;
    rclcpp::CallbackGroup::SharedPtr control;
    rclcpp::Subscription<state_message>::SharedPtr state_in;
    rclcpp::Publisher<std_msgs::msg::Float64MultiArray>::SharedPtr array_out;
    rclcpp::Publisher<trajectory_msgs::msg::JointTrajectory>::SharedPtr trajectory_out;
    rclcpp::Publisher<diagnostic_msgs::msg::DiagnosticArray>::SharedPtr diagnostics;
    rclcpp::Service<std_srvs::srv::Trigger>::SharedPtr stop, resume;
    rclcpp::TimerBase::SharedPtr timer, teller;
};

} // namespace openpi_ros

#endif
