/* openpi.hpp in use: a tiny model moves an arm through the runner. tests/scripts/cpp.sh compiles it. */
#include <openpi.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

void check(bool holds, const char *what, const char *sentence) {
    if (holds) return;
    std::fprintf(stderr, "arm.cpp: not so: %s. %s\n", what, sentence);
    std::exit(1);
}
template <class Call>
void works(const Call &call, const char *what) {
    check(bool(call), what, call.sentence());
}
#define CHECK(holds) check((holds), #holds, "")
#define WORKS(call) works((call), #call)

template <class Handle>
constexpr bool moves_only() {
    return std::is_nothrow_move_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle> &&
           !std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>;
}
static_assert(moves_only<openpi::engine>() && moves_only<openpi::session>() && moves_only<openpi::policy>() &&
              moves_only<openpi::request>() && moves_only<openpi::runner>());
static_assert(sizeof(openpi::runner) == sizeof(openpi_runner *));
static_assert(sizeof(openpi::image) == sizeof(openpi_image), "arrays of them are the library's");

constexpr int side = 8, states = 8, dims = 8, horizon = 10;

struct sight {
    std::vector<unsigned char> pixels = std::vector<unsigned char>(side * side * 3, 99);
    std::array<double, states> state{};
    openpi::image images[2];
    openpi::observation seen;

    sight() {
        const char *names[] = {"base", "left_wrist"};
        for (int i = 0; i < 2; i++) {
            images[i].name = names[i];
            images[i].data = pixels.data();
            images[i].height = images[i].width = side;
        }
        seen.images = images;
        seen.image_count = 2;
        seen.state = state.data();
        seen.state_length = states;
        seen.prompt = "go";
    }
    sight(const sight &) = delete;
    sight &operator=(const sight &) = delete;
};

struct model {
    openpi::engine engine;
    openpi::policy policy;
};

model open_model() {
    openpi::synthetic tiny;
    openpi::engine_options options;
    openpi::policy_options robot;
    WORKS(openpi::outcome::of(openpi_synthetic_parse, "tiny:pi0", static_cast<openpi_synthetic *>(&tiny)));
    options.synthetic = robot.synthetic = &tiny;
    options.threads = 1;
    robot.robot = "{\"like\": \"droid\", \"name\": \"arm\", \"horizon\": 10}";
    auto engine = openpi::engine::open(nullptr, options);
    auto policy = openpi::policy::open(nullptr, robot);
    WORKS(engine);
    WORKS(policy);
    return {engine.take(), policy.take()};
}

openpi::session_options two_steps() {
    openpi::session_options options;
    options.seed = 5;
    options.horizon = horizon;
    options.steps = 2;
    return options;
}

std::array<double, horizon * dims> inferred(model &m, const sight &s) {
    std::array<double, horizon * dims> actions{};
    openpi::timing times;
    auto session = openpi::session::create(m.engine, two_steps());
    auto request = openpi::request::create(m.policy);
    WORKS(session);
    WORKS(request);
    WORKS(request->infer(*session, s.seen, actions.data(), actions.size(), nullptr, &times));
    CHECK(session->info()->runs == 1 && times.total_ms > 0);
    CHECK(request->limited()->changed == 0);
    return actions;
}

/* The next action of a chunk. */
openpi::tick moved(openpi::runner &runner, double now_ms) {
    openpi::tick tick = runner.next(now_ms);
    while (tick.move != OPENPI_MOVE_ACTION) {
        CHECK(tick.state.reason == OPENPI_REASON_STARTING);
        std::this_thread::yield();
        tick = runner.next(now_ms);
    }
    return tick;
}

void what_fails_says_why() {
    auto engine = openpi::engine::open("/no/such/checkpoint");
    CHECK(!engine && engine.status() == OPENPI_NOT_FOUND);
    CHECK(std::strstr(engine.sentence(), "/no/such/checkpoint"));
    CHECK(!*engine && engine->note(0) == nullptr);
    openpi::policy none;
    auto runner = openpi::runner::open(*engine, none);
    CHECK(!runner && runner.status() == OPENPI_BAD_ARGUMENT);
    CHECK(std::strstr(runner.sentence(), "is NULL"));
    runner->stop();
    CHECK(runner->next(0).move == OPENPI_MOVE_STOP && !runner->next(0).state.known);
    CHECK(!runner->observe(openpi::observation(), 0) && !runner->info());
}

void an_arm_moves() {
    model m = open_model();
    sight s;
    const auto expected = inferred(m, s);
    auto opened = openpi::runner::open(m.engine, m.policy, {}, two_steps());
    WORKS(opened);
    openpi::runner runner = opened.take();
    CHECK(!*opened && runner);
    WORKS(runner.observe(s.seen, 0));
    for (int row = 0; row < horizon; row++) {
        openpi::tick tick = moved(runner, row);
        CHECK(tick.state.row == row && tick.state.known);
        const double *row_of_chunk = expected.data() + row * dims;
        CHECK(std::equal(row_of_chunk, row_of_chunk + dims, tick.action.begin()));
    }
    CHECK(runner.next(horizon).state.reason == OPENPI_REASON_NO_ACTIONS);
    CHECK(runner.info()->steps == horizon && runner.info()->action_dim == dims);
    runner.stop();
    CHECK(runner.next(horizon).move == OPENPI_MOVE_STOP);
    runner.resume();
    CHECK(runner.next(horizon).move == OPENPI_MOVE_HOLD);
}

void lent_pictures_live_as_long_as_they_are_read() {
    model m = open_model();
    auto lent = std::make_shared<sight>();
    {
        auto runner = openpi::runner::open(m.engine, m.policy, {}, two_steps());
        WORKS(runner);
        WORKS(runner->lend(lent->seen, 0, lent));
        CHECK(moved(*runner, 1).state.chunk == 1);
        openpi::observation unknown;
        unknown.size = 0;
        CHECK(!runner->lend(unknown, 2, lent));
        WORKS(runner->lend(lent->seen, 3, lent));
        runner = openpi::runner::open(m.engine, m.policy); /* the one before is closed */
        WORKS(runner);
    }
    CHECK(lent.use_count() == 1);
}

} // namespace

int main() {
    what_fails_says_why();
    an_arm_moves();
    lent_pictures_live_as_long_as_they_are_read();
    return 0;
}
