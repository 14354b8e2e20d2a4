/* The names of rclcpp that ros2/src uses, for a machine without ROS 2: a node in one process, whose topics a
 * test fills and reads by hand and whose timers it lets run. Signatures as in rclcpp; no more than those. */
#ifndef STUB_RCLCPP_HPP
#define STUB_RCLCPP_HPP

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace builtin_interfaces::msg {
struct Time {
    std::int32_t sec = 0;
    std::uint32_t nanosec = 0;
};
struct Duration {
    std::int32_t sec = 0;
    std::uint32_t nanosec = 0;
};
} // namespace builtin_interfaces::msg
namespace std_msgs::msg {
struct Header {
    builtin_interfaces::msg::Time stamp;
    std::string frame_id;
};
} // namespace std_msgs::msg

namespace stub {
using value = std::variant<std::string, double, std::int64_t, std::vector<std::string>>;
/* What a test sees of the node: parameters in, calls by topic, messages out. */
struct world {
    std::map<std::string, value> parameters;
    std::map<std::string, std::function<void(std::shared_ptr<const void>)>> topics;
    std::map<std::string, std::function<void()>> services;
    std::map<std::string, std::vector<std::shared_ptr<const void>>> published;
    std::vector<std::function<void()>> timers;
    std::vector<std::chrono::nanoseconds> periods;
    std::vector<std::string> logged;
};
inline world *the = nullptr;
} // namespace stub

namespace rclcpp {

struct Logger {};
struct Duration {
    explicit Duration(std::chrono::nanoseconds all) : nanoseconds(all) {}
    operator builtin_interfaces::msg::Duration() const {
        builtin_interfaces::msg::Duration made;
        made.sec = static_cast<std::int32_t>(nanoseconds.count() / 1000000000);
        made.nanosec = static_cast<std::uint32_t>(nanoseconds.count() % 1000000000);
        return made;
    }
    std::chrono::nanoseconds nanoseconds;
};
struct Time {
    operator builtin_interfaces::msg::Time() const { return {}; }
};
struct QoS {
    QoS(std::size_t) {}
    QoS &keep_last(std::size_t) { return *this; }
};
struct SensorDataQoS : QoS {
    SensorDataQoS() : QoS(5) {}
};
enum class CallbackGroupType { MutuallyExclusive, Reentrant };
struct CallbackGroup {
    using SharedPtr = std::shared_ptr<CallbackGroup>;
};
struct TimerBase {
    using SharedPtr = std::shared_ptr<TimerBase>;
};
template <class M> struct Subscription { using SharedPtr = std::shared_ptr<Subscription>; };
template <class S> struct Service { using SharedPtr = std::shared_ptr<Service>; };
template <class M> struct Publisher {
    using SharedPtr = std::shared_ptr<Publisher>;
    void publish(const M &message) {
        stub::the->published[topic].push_back(std::make_shared<const M>(message));
    }
    std::string topic;
};
struct NodeOptions {};

class Node {
  public:
    explicit Node(const std::string &, const NodeOptions & = NodeOptions()) {}
    virtual ~Node() = default;
    template <class T> T declare_parameter(const std::string &name, const T &otherwise) {
        const auto found = stub::the->parameters.find(name);
        return found == stub::the->parameters.end() ? otherwise : std::get<T>(found->second);
    }
    Logger get_logger() const { return {}; }
    Time now() const { return {}; }
    CallbackGroup::SharedPtr create_callback_group(CallbackGroupType) {
        return std::make_shared<CallbackGroup>();
    }
    template <class M, class F>
    typename Subscription<M>::SharedPtr create_subscription(const std::string &topic, const QoS &, F call) {
        stub::the->topics[topic] = [call](std::shared_ptr<const void> message) {
            call(std::static_pointer_cast<const M>(message));
        };
        return std::make_shared<Subscription<M>>();
    }
    template <class M>
    typename Publisher<M>::SharedPtr create_publisher(const std::string &topic, const QoS &) {
        auto made = std::make_shared<Publisher<M>>();
        made->topic = topic;
        return made;
    }
    template <class S, class F>
    typename Service<S>::SharedPtr create_service(const std::string &name, F call) {
        stub::the->services[name] = [call] {
            call(std::make_shared<typename S::Request>(), std::make_shared<typename S::Response>());
        };
        return std::make_shared<Service<S>>();
    }
    template <class P, class F>
    TimerBase::SharedPtr create_wall_timer(P period, F call, CallbackGroup::SharedPtr = nullptr) {
        stub::the->timers.push_back(call);
        stub::the->periods.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(period));
        return std::make_shared<TimerBase>();
    }
};

struct ExecutorOptions {};
namespace executors {
struct MultiThreadedExecutor {
    MultiThreadedExecutor(const ExecutorOptions &, std::size_t) {}
    void add_node(std::shared_ptr<Node>) {}
    void spin() {}
};
} // namespace executors
inline void init(int, char **) {}
inline bool shutdown() { return true; }

} // namespace rclcpp

namespace stub {
template <class... Values> void log(const char *format, Values... values) {
    char line[1000];
    std::snprintf(line, sizeof line, format, values...);
    if (the) the->logged.push_back(line);
}
} // namespace stub
#define RCLCPP_INFO(logger, ...) ((void)(logger), stub::log(__VA_ARGS__))
#define RCLCPP_WARN(logger, ...) ((void)(logger), stub::log(__VA_ARGS__))
#define RCLCPP_ERROR(logger, ...) ((void)(logger), stub::log(__VA_ARGS__))

#endif
