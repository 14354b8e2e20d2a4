/* openpi.hpp - openpi.h and openpi_runner.h for C++17: handles that close themselves, errors as results.
 *
 *   auto engine = openpi::engine::open("checkpoint");
 *   if (!engine) return complain(engine.sentence());
 *   auto policy = openpi::policy::open("checkpoint");
 *   auto runner = openpi::runner::open(*engine, *policy);
 *   if (!runner) return complain(runner.sentence());      // a policy that did not open is told here, too
 *   for (;;) {
 *       openpi::tick tick = runner->next(now_ms);         // never throws, never blocks
 *       if (tick.state.known) send(tick.action.data());
 *   }
 *
 * Header only; needs no exceptions and no RTTI, and throws nothing. Every contract is in those two.
 *
 * A handle is moved, not copied. One that was moved from, or whose open failed, is empty: every function with
 * it fails with OPENPI_BAD_ARGUMENT, and a runner's next() says STOP. What openpi.h says about the order of
 * closing is kept where the names are declared in the order of the example, because C++ destroys the last one
 * first: engine and policy, then sessions, requests and runners. get() gives the C handle for all that has no
 * member function here.
 *
 * Note: options, observations and pictures are openpi.h's structs with their INIT values already in them.
 * Functions that openpi calls (release, progress, sources) must let no exception out. */
#ifndef OPENPI_HPP
#define OPENPI_HPP

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "openpi_runner.h"

namespace openpi {

/* The structs of both headers, as their INIT macros make them: same size, same layout. */
#define OPENPI_HPP_STRUCT(name, INIT)                       \
    struct name : openpi_##name {                           \
        name() noexcept : openpi_##name INIT {}             \
    };
OPENPI_HPP_STRUCT(error, OPENPI_ERROR_INIT)
OPENPI_HPP_STRUCT(synthetic, OPENPI_SYNTHETIC_INIT)
OPENPI_HPP_STRUCT(engine_options, OPENPI_ENGINE_OPTIONS_INIT)
OPENPI_HPP_STRUCT(engine_info, OPENPI_ENGINE_INFO_INIT)
OPENPI_HPP_STRUCT(session_options, OPENPI_SESSION_OPTIONS_INIT)
OPENPI_HPP_STRUCT(session_info, OPENPI_SESSION_INFO_INIT)
OPENPI_HPP_STRUCT(policy_options, OPENPI_POLICY_OPTIONS_INIT)
OPENPI_HPP_STRUCT(policy_info, OPENPI_POLICY_INFO_INIT)
OPENPI_HPP_STRUCT(limits, OPENPI_LIMITS_INIT)
OPENPI_HPP_STRUCT(limited, OPENPI_LIMITED_INIT)
OPENPI_HPP_STRUCT(image, OPENPI_IMAGE_INIT)
OPENPI_HPP_STRUCT(observation, OPENPI_OBSERVATION_INIT)
OPENPI_HPP_STRUCT(timing, OPENPI_TIMING_INIT)
OPENPI_HPP_STRUCT(source, OPENPI_SOURCE_INIT)
OPENPI_HPP_STRUCT(runner_options, OPENPI_RUNNER_OPTIONS_INIT)
OPENPI_HPP_STRUCT(runner_state, OPENPI_RUNNER_STATE_INIT)
OPENPI_HPP_STRUCT(runner_info, OPENPI_RUNNER_INFO_INIT)
#undef OPENPI_HPP_STRUCT

/* How a call ended: true where it worked, else a status and a sentence. */
class [[nodiscard]] outcome {
  public:
    explicit operator bool() const noexcept { return told.status == OPENPI_OK; }
    openpi_status status() const noexcept { return told.status; }
    const char *sentence() const noexcept { return told.message; }

    /* Calls function(arguments …, &error). */
    template <class Function, class... Arguments>
    static outcome of(Function function, Arguments... arguments) noexcept {
        outcome call;
        call.told.status = function(arguments..., &call.told);
        return call;
    }

  private:
    error told;
};

/* The same, and what the call gave; empty or as it began where it failed. */
template <class T>
class [[nodiscard]] result {
  public:
    result(outcome &&how, T &&what) noexcept : call(std::move(how)), value(std::move(what)) {}
    explicit operator bool() const noexcept { return bool(call); }
    openpi_status status() const noexcept { return call.status(); }
    const char *sentence() const noexcept { return call.sentence(); }
    T &operator*() noexcept { return value; }
    const T &operator*() const noexcept { return value; }
    T *operator->() noexcept { return &value; }
    const T *operator->() const noexcept { return &value; }
    T take() noexcept { return std::move(value); }

  private:
    outcome call;
    T value;
};

/* Owns a C handle. */
template <class C, void (*close)(C *)>
class handle {
  public:
    handle() noexcept = default;
    explicit handle(C *owned) noexcept : c(owned) {}
    handle(handle &&other) noexcept : c(std::exchange(other.c, nullptr)) {}
    handle &operator=(handle &&other) noexcept {
        if (this != &other) close(std::exchange(c, std::exchange(other.c, nullptr)));
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { close(c); }

    C *get() const noexcept { return c; }
    C *release() noexcept { return std::exchange(c, nullptr); } /* the caller closes it from now on */
    explicit operator bool() const noexcept { return c != nullptr; }

  protected:
    /* Calls function(arguments …, &handle, &error). */
    template <class Handle, class Function, class... Arguments>
    static result<Handle> made(Function function, Arguments... arguments) noexcept {
        C *made = nullptr;
        outcome call = outcome::of(function, arguments..., &made);
        return result<Handle>(std::move(call), Handle(made));
    }
    /* Calls function(handle, &value, &error). */
    template <class Value, class Function>
    result<Value> told(Function function) const noexcept {
        Value value;
        outcome call = outcome::of(function, c, &value);
        return result<Value>(std::move(call), std::move(value));
    }

  private:
    C *c = nullptr;
};

/* A loaded model and its threads. Any thread, at once. */
class engine : public handle<openpi_engine, openpi_engine_close> {
  public:
    using handle::handle;
    static result<engine> open(const char *checkpoint, const engine_options &options = {}) noexcept {
        return made<engine>(openpi_engine_open, checkpoint, &options);
    }
    result<engine_info> info() const noexcept { return told<engine_info>(openpi_engine_get_info); }
    /* Sentence `index` of what loading found; nullptr after the last. */
    const char *note(int index, bool *warning = nullptr) const noexcept {
        int warns = 0;
        const char *sentence = openpi_engine_note(get(), index, &warns);
        if (warning) *warning = warns != 0;
        return sentence;
    }
};

/* Memory and plan of one stream of calls. One thread at a time. */
class session : public handle<openpi_session, openpi_session_close> {
  public:
    using handle::handle;
    static result<session> create(engine &engine, const session_options &options = {}) noexcept {
        return made<session>(openpi_session_create, engine.get(), &options);
    }
    result<session_info> info() const noexcept { return told<session_info>(openpi_session_get_info); }
};

/* Robot, statistics and tokenizer. Any thread, at once. */
class policy : public handle<openpi_policy, openpi_policy_close> {
  public:
    using handle::handle;
    static result<policy> open(const char *checkpoint, const policy_options &options = {}) noexcept {
        return made<policy>(openpi_policy_open, checkpoint, &options);
    }
    result<policy_info> info() const noexcept { return told<policy_info>(openpi_policy_get_info); }
    result<openpi::limits> limits() const noexcept { return told<openpi::limits>(openpi_policy_get_limits); }
    double rate() const noexcept { return openpi_policy_rate(get()); }
};

/* An observation on its way to actions. One thread at a time. */
class request : public handle<openpi_request, openpi_request_close> {
  public:
    using handle::handle;
    static result<request> create(const policy &policy) noexcept {
        return made<request>(openpi_request_create, policy.get());
    }
    /* actions [horizon][action_dim], `capacity` numbers of memory. */
    outcome infer(session &session, const openpi_observation &seen, double *actions, std::size_t capacity,
                  const float *noise = nullptr, openpi_timing *times = nullptr) noexcept {
        return outcome::of(openpi_policy_infer, get(), session.get(), &seen, noise, actions, capacity, times);
    }
    /* What the robot's limits changed in the last chunk. */
    result<openpi::limited> limited() const noexcept {
        return told<openpi::limited>(openpi_request_get_limited);
    }
};

/* What the robot is to be given now. */
struct tick {
    openpi_move move = OPENPI_MOVE_STOP;
    runner_state state;
    std::array<double, OPENPI_ACTION_DIM> action{}; /* the first action_dim of them; 0 after these */
};

/* Observations in when they come, an action out at the robot's rate (docs/runner.md). */
class runner : public handle<openpi_runner, openpi_runner_close> {
  public:
    using handle::handle;
    /* Engine and policy stay where they are closed last. */
    static result<runner> open(engine &engine, const policy &policy, const runner_options &options = {},
                               const session_options &session = {}) noexcept {
        return made<runner>(openpi_runner_open, engine.get(), policy.get(), &session, &options);
    }
    static result<runner> over(const openpi_source &source, const runner_options &options) noexcept {
        return made<runner>(openpi_runner_over_source, &source, &options);
    }

    outcome observe(const openpi_observation &seen, double taken_ms) noexcept {
        return outcome::of(openpi_runner_observe, get(), &seen, taken_ms);
    }
    outcome observe(const openpi_field *fields, int count, double taken_ms) noexcept {
        return outcome::of(openpi_runner_observe_fields, get(), fields, count, taken_ms);
    }
    using keeper = std::shared_ptr<const void>;
    /* The pictures stay where they are, and `owner` keeps them there until the runner is done with them. */
    outcome lend(const openpi_observation &seen, double taken_ms, keeper owner) noexcept {
        keeper *kept = new (std::nothrow) keeper(std::move(owner));
        if (!kept) return outcome::of(no_memory);
        outcome call = outcome::of(openpi_runner_lend, get(), &seen, taken_ms,
                                   [](void *user) { delete static_cast<keeper *>(user); }, kept);
        if (!call) delete kept;
        return call;
    }
    /* For the control thread, once a period: waits for nothing, allocates nothing. */
    tick next(double now_ms) noexcept {
        tick given;
        given.move = openpi_runner_next(get(), now_ms, given.action.data(), &given.state);
        return given;
    }

    void stop() noexcept { openpi_runner_stop(get()); }
    void resume() noexcept { openpi_runner_resume(get()); }
    void cancel() noexcept { openpi_runner_cancel(get()); }
    /* Not for the control thread. */
    result<runner_info> info() const noexcept { return told<runner_info>(openpi_runner_get_info); }

  private:
    static openpi_status no_memory(openpi_error *why) noexcept {
        constexpr char sentence[] = "a lent observation: no memory for its owner";
        for (std::size_t i = 0; i < sizeof sentence; i++) why->message[i] = sentence[i];
        return OPENPI_NO_MEMORY;
    }
};

} // namespace openpi

#endif
