/* openpi serve: a policy server that robots talk to as to openpi's own. The server itself is serve/. */
#include <stdio.h>
#include <unistd.h>

#include "base/ascii.h"
#include "cli.h"
#include "input.h"
#include "progress.h"
#include "service.h"
#include "serve/serve.h"

enum {
    END_DEVICE_LOST = 75,        /* EX_TEMPFAIL: systemd's Restart=on-failure starts it again              */
    THROUGHPUT_BLOCK = 8,        /* calls of one sample                                                    */
};

typedef struct serve_values {
    const char *allow_origin, *default_prompt;
    const char *synthetic, *host, *admin, *tokens;
    const char *shadow_weights, *shadow_device, *shadow_bound;
    int shadow;
    const char *new_token, *tls_certificate, *tls_key, *record, *updates;
    int token_class, rate, no_admin, log_format, log_requests;
    int kept_prefixes, samples;
    int horizon, steps, port, trust_network, drain, prepare_threads, max_block, throughput;
    int max_connections, max_per_address, max_attempts, handshake, message, reply, ping;
    uint64_t seed, max_message, max_in_flight, record_max;
    lora_values lora;
    policy_values policy;
    machine_values machine;
} serve_values;

/* The line goes to stdout, so that it can be appended to the file, the key to stderr. */
static int new_token(const serve_values *v) {
    static const char *const classes[] = {"shared", "reserved", "shared", "admin"};     /* by --class      */
    enum { RESERVED = 1 };
    openpi_error error = OPENPI_ERROR_INIT;
    serve_token token;
    int reserved = v->token_class == RESERVED;
    if (reserved != (v->rate > 0))
        return usage_error(&verb_serve, reserved ? "--class reserved needs --rate, in calls a second"
                                                 : "--rate is of --class reserved");
    if (serve_new_token(v->new_token, classes[v->token_class], v->rate, &token, &error) != OPENPI_OK)
        return library_error(&verb_serve, &error);
    fprintf(stderr, "the key, which is stored nowhere: %s\n", token.key);
    puts(token.line);
    return END_FINE;
}

/* 0: the options of --shadow are told to be wrong. */
static int shadow_read(const serve_values *v, double *bound) {
    char *end = NULL;
    *bound = v->shadow_bound ? ascii_number(v->shadow_bound, &end) : SERVE_SHADOW_BOUND;
    if ((v->shadow_weights || v->shadow_device || v->shadow_bound) && !v->shadow)
        usage_error(&verb_serve, "--shadow-weights, --shadow-device and --shadow-bound are of --shadow");
    else if ((end && *end) || !(*bound > 0 && *bound <= 1e6))
        usage_error(&verb_serve, "--shadow-bound is '%s', expected a number of σ such as 0.02",
                    v->shadow_bound);
    else return 1;
    return 0;
}

/* Half the processors, as long as that is neither one nor more than decoding has a use for. */
static int usual_threads(void) {
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    if (half < SERVE_PREPARE_FEWEST) return SERVE_PREPARE_FEWEST;
    return half > SERVE_PREPARE_MOST ? SERVE_PREPARE_MOST : (int)half;
}

static int serve_run(const void *values, char **positional, int count) {
    enum { TEXT = 1, JSON = 2 };           /* places in --log-format's list                                */
    const serve_values *v = values;
    openpi_error error = OPENPI_ERROR_INIT;
    model_name model;
    progress bar;
    service_manager manager;
    char without[SWITCH_TEXT], cache[HOME_PATH], sentence[SERVICE_SENTENCE];
    if (v->new_token) return new_token(v);
    if (v->token_class || v->rate)
        return usage_error(&verb_serve, "--class and --rate are of --new-token");
    if (v->record_max && !v->record) return usage_error(&verb_serve, "--record-max is of --record");
    double bound;
    if (!shadow_read(v, &bound)) return END_USAGE;
    if (!v->tls_certificate != !v->tls_key)
        return usage_error(&verb_serve, "--tls-cert and --tls-key belong together");
    int terminal = isatty(STDERR_FILENO);
    int end = model_name_read(&verb_serve, v->synthetic, positional, count, &model), busy = 0;
    if (end != END_FINE) return end;
    if (!service_manager_read(&manager, sentence)) return usage_error(&verb_serve, "%s", sentence);
    serve_options options = {.checkpoint = model.checkpoint,
                             .engine = OPENPI_ENGINE_OPTIONS_INIT,
                             .policy = OPENPI_POLICY_OPTIONS_INIT,
                             .horizon = v->horizon,
                             .steps = v->steps,
                             .default_prompt = v->default_prompt,
                             .seed = v->seed,
                             .host = v->host,
                             .port = v->port,
                             .trust_network = v->trust_network,
                             .allow_origin = v->allow_origin,
                             .admin = v->no_admin ? NULL : v->admin ? v->admin : SERVE_ADMIN,
                             .drain_seconds = v->drain,
                             .prepare_threads = v->prepare_threads ? v->prepare_threads : usual_threads(),
                             .max_block = v->max_block ? v->max_block : v->throughput ? THROUGHPUT_BLOCK : 1,
                             .kept_prefixes = v->kept_prefixes,
                             .samples = v->samples,
                             .max_message_bytes = v->max_message,
                             .max_in_flight = v->max_in_flight,
                             .max_connections = v->max_connections,
                             .max_per_address = v->max_per_address,
                             .max_attempts = v->max_attempts,
                             .handshake_seconds = v->handshake,
                             .message_seconds = v->message,
                             .reply_seconds = v->reply,
                             .ping_seconds = v->ping,
                             .tokens = input_path(v->tokens),
                             .tls_certificate = input_path(v->tls_certificate),
                             .tls_key = input_path(v->tls_key),
                             .record = v->record,
                             .shadow = v->shadow,
                             .shadow_weights = v->shadow_weights,
                             .shadow_device = v->shadow_device,
                             .shadow_bound = bound,
                             .updates = input_path(v->updates),
                             .record_most = v->record_max,
                             .log_json = v->log_format == JSON || (v->log_format != TEXT && !terminal),
                             .log_prefix = manager.journal,
                             .log_requests = v->log_requests,
                             .notify_socket = manager.notify,
                             .watchdog_us = manager.watchdog_us,
                             .inherited = manager.sockets,
                             .first_inherited = SERVICE_FIRST_SOCKET};
    machine_options(&v->machine, without, &options.engine);
    engine_of_model(&model, &v->lora, &options.engine);
    options.engine.progress = progress_show;
    options.engine.progress_user = &bar;
    policy_of_model(&model, &v->lora, &v->policy, cache, &options.policy);
    progress_start(&bar);
    openpi_status status = serve(&options, &busy, &error);
    progress_end(&bar);
    if (busy) _exit(END_FINE);
    if (status == OPENPI_DEVICE_LOST) {
        library_error(&verb_serve, &error);
        return END_DEVICE_LOST;
    }
    return status == OPENPI_OK ? END_FINE : library_error(&verb_serve, &error);
}

/* ---- the options ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(serve_values, field)

static const serve_values defaults = {.port = SERVE_PORT,
                                      .drain = SERVE_DRAIN_SECONDS,
                                      .kept_prefixes = 1,
                                      .samples = 1,
                                      .max_message = SERVE_MESSAGE_BYTES,
                                      .max_in_flight = SERVE_IN_FLIGHT_BYTES,
                                      .max_connections = SERVE_CONNECTIONS,
                                      .max_per_address = SERVE_PER_ADDRESS,
                                      .handshake = SERVE_HANDSHAKE_SECONDS,
                                      .message = SERVE_MESSAGE_SECONDS,
                                      .reply = SERVE_REPLY_SECONDS,
                                      .ping = SERVE_PING_SECONDS};

static const option_row options[] = {
    {OPTION_HEADING, .name = "Model"},
    SYNTHETIC_OPTION(serve_values, synthetic),
    LORA_OPTIONS(serve_values, lora),
    {OPTION_HEADING, .name = "Policy"},
    POLICY_OPTIONS(serve_values, policy),
    {OPTION_TEXT, "default-prompt", "TEXT",
     "of requests without a prompt (default: the robot's, where it has one)", .offset = AT(default_prompt)},
    {OPTION_HEADING, .name = "Sampling"},
    {OPTION_INT, "horizon", "N",
     "actions of a chunk (default: the config's or the checkpoint's)",
     .offset = AT(horizon), .low = 1, .high = OPENPI_MAX_HORIZON},
    {OPTION_INT, "steps", "N",
     "denoising steps (default: the checkpoint's, 10)",
     .offset = AT(steps), .low = 1, .high = OPENPI_MAX_STEPS},
    {OPTION_U64, "seed", "N",
     "draw the noise from this seed (default: 0); the first request gets what `openpi run --seed N` draws",
     .offset = AT(seed)},
    {OPTION_INT, "samples", "N",
     "chunks of one observation that one call computes, where a request asks for several; the memory is that "
     "of such a batch (default: 1, one after the other over one prefix)",
     .offset = AT(samples), .low = 1, .high = OPENPI_MAX_BATCH},
    {OPTION_INT, "kept-prefixes", "N",
     "connections whose last prefix is kept, so that a request with the same pictures and prompt does not "
     "compute it again; each holds memory for a session (default: 1; 0: none)",
     .offset = AT(kept_prefixes), .low = 0, .high = OPENPI_MAX_BATCH},
    {OPTION_TEXT, "updates", "FOLDER",
     "POST /weights/NAME of the admin port puts the tensors of this folder's safetensors file NAME in the "
     "place of the model's (default: no file may be named)", .offset = AT(updates)},
    {OPTION_HEADING, .name = "Network"},
    {OPTION_TEXT, "host", "ADDRESS",
     "listen on this address or name (default: 127.0.0.1, which only this machine reaches)",
     .offset = AT(host)},
    {OPTION_INT, "port", "N", "listen on this port (default: 8000; 0: one that is free)",
     .offset = AT(port), .low = 0, .high = 65535},
    {OPTION_FLAG, "trust-network", NULL,
     "allow an address that other machines reach without --tokens and TLS: whoever connects may move the "
     "robots",
     .offset = AT(trust_network)},
    {OPTION_TEXT, "allow-origin", "ORIGIN,...",
     "web pages of these origins may connect, for example https://robots.example; *: of all (default: only "
     "those of the server's own address)", .offset = AT(allow_origin)},
    {OPTION_INPUT, "tls-cert", "FILE",
     "speak TLS (wss://) with this certificate and its chain, in PEM; read again after SIGHUP",
     .offset = AT(tls_certificate)},
    {OPTION_INPUT, "tls-key", "FILE",
     "the certificate's key, in PEM without a passphrase; refused where everybody can read it",
     .offset = AT(tls_key)},
    {OPTION_TEXT, "admin", "HOST:PORT",
     "metrics, a page and their commands (default: 127.0.0.1:8642); where other machines reach it, it "
     "needs a token of the class admin, and TLS or --trust-network", .offset = AT(admin)},
    {OPTION_FLAG, "no-admin", NULL, "no admin port", .offset = AT(no_admin)},
    {OPTION_HEADING, .name = "Limits"},
    {OPTION_BYTES, "max-message", "BYTES", "the largest request (default: 16MB)", .offset = AT(max_message)},
    {OPTION_BYTES, "max-in-flight", "BYTES",
     "all requests together that are received, wait or are computed, with what preparing them takes "
     "(default: 1GB)",
     .offset = AT(max_in_flight)},
    {OPTION_INT, "max-connections", "N", "WebSockets (default: 1024); who comes then gets 503",
     .offset = AT(max_connections), .low = 1, .high = 65536},
    {OPTION_INT, "max-per-address", "N",
     "WebSockets of one client address, which all robots behind a proxy share (default: 32)",
     .offset = AT(max_per_address), .low = 1, .high = 65536},
    {OPTION_INT, "max-attempts", "N",
     "connections a second of one client address, where a handshake that is refused counts as 5; who comes "
     "then is hung up on unread (default: four times --max-per-address)",
     .offset = AT(max_attempts), .low = 1, .high = 1000000},
    {OPTION_INT, "handshake-timeout", "SECONDS", "from connecting to a complete request head (default: 5)",
     .offset = AT(handshake), .low = 1, .high = 3600},
    {OPTION_INT, "message-timeout", "SECONDS", "from a request's first byte to its last (default: 10)",
     .offset = AT(message), .low = 1, .high = 3600},
    {OPTION_INT, "reply-timeout", "SECONDS", "a client that leaves a reply unread is dropped (default: 10)",
     .offset = AT(reply), .low = 1, .high = 3600},
    {OPTION_INT, "ping-interval", "SECONDS",
     "a silent client is pinged, and dropped where it is silent as long again (default: 20)",
     .offset = AT(ping), .low = 1, .high = 3600},
    {OPTION_HEADING, .name = "Tokens"},
    {OPTION_INPUT, "tokens", "FILE",
     "only who has a token of this file may connect; each line: name, reserved, shared or admin, calls a "
     "second (-: not reserved; all connections of a token together), SHA-256 of the key in hex; read again "
     "after SIGHUP", .offset = AT(tokens)},
    {OPTION_TEXT, "new-token", "NAME", "print a new key and its line for that file, and serve nobody",
     .offset = AT(new_token)},
    {OPTION_CHOICE, "class", "reserved|shared|admin", "of the new token (default: shared)",
     .offset = AT(token_class)},
    {OPTION_INT, "rate", "N", "calls a second of the new reserved token",
     .offset = AT(rate), .low = 1, .high = 1000},
    {OPTION_HEADING, .name = "Service"},
    {OPTION_INT, "drain", "SECONDS",
     "after SIGTERM the running requests have this long to be answered (default: 10)",
     .offset = AT(drain), .low = 1, .high = 3600},
    {OPTION_INT, "prepare-threads", "N",
     "threads that decode, resize and tokenise requests while the device computes; reserved robots have one "
     "more (default: half the processors, 2 to 8)",
     .offset = AT(prepare_threads), .low = 1, .high = 64},
    {OPTION_CHOICE, "log-format", "text|json|auto",
     "of the lines on stderr: for people, or an object each (default: auto, which is text on a terminal)",
     .offset = AT(log_format)},
    {OPTION_FLAG, "log-requests", NULL, "a log line for each request, not only for those that fail",
     .offset = AT(log_requests)},
    {OPTION_HEADING, .name = "Recording"},
    {OPTION_TEXT, "record", "FOLDER",
     "what every robot saw and was told, in MCAP files of an hour each, for Foxglove and `openpi replay`; "
     "pictures are kept as they came", .offset = AT(record)},
    {OPTION_BYTES, "record-max", "BYTES",
     "all recordings together (default: 10GB); beyond it the oldest are removed", .offset = AT(record_max)},
    {OPTION_HEADING, .name = "Shadow"},
    {OPTION_INT, "shadow", "N",
     "compute every Nth request again with other weights when its reply has left and its device is idle; "
     "metrics and log tell what the actions differ by (default: none)",
     .offset = AT(shadow), .low = 1, .high = 1000000},
    {OPTION_TEXT, "shadow-weights", "LIST", "the weights of the shadow, as --weights (default: bf16)",
     .offset = AT(shadow_weights)},
    {OPTION_TEXT, "shadow-device", "NAME",
     "where it computes: on another device it never shares one with a robot (default: the first of --device)",
     .offset = AT(shadow_device)},
    {OPTION_TEXT, "shadow-bound", "RMS",
     "log a chunk whose rms difference is above this, in standard deviations of the training data (default: "
     "0.02)", .offset = AT(shadow_bound)},
    {OPTION_HEADING, .name = "Scheduling"},
    {OPTION_FLAG, "throughput", NULL,
     "more chunks a second, each later: a batch may last as long as 8 calls of one robot",
     .offset = AT(throughput)},
    {OPTION_INT, "max-block", "CALLS",
     "the longest that a batch of shared robots may last, in calls of one robot (default: 1)",
     .offset = AT(max_block), .low = 1, .high = OPENPI_MAX_BATCH},
    {OPTION_HEADING, .name = "Machine"},
    MACHINE_OPTIONS(serve_values, machine),
    {0},
};

static const conflict conflicts[] = {
    {"", "synthetic", "the weights are either read or made"},
    LORA_CONFLICT,
    {"norm-stats", "assets", "both name the statistics"},
    {"robot", "config", "a config names its robot"},
    {"throughput", "max-block", "--throughput is --max-block 8"},
    {"admin", "no-admin", "there is an admin port or none"},
    {"", "new-token", "a new token is of no model"},
    {"tokens", "new-token", "the line of a new token is printed; append it to the file yourself: >> FILE"},
    {0},
};

static const option_alone alone = {"new-token", "nobody is served", {"class", "rate", NULL}};

static const example examples[] = {
    {"no checkpoint and no GPU: try your robot's code", "openpi serve --synthetic tiny --robot aloha"},
    {"a DROID arm with openpi's own checkpoint and settings",
     "openpi serve pi05_droid/ --config pi05_droid --device cuda:0"},
    {"for robots of other machines that have a token, over TLS",
     "openpi serve pi05_droid/ --host 0.0.0.0 --tokens tokens --tls-cert cert.pem --tls-key key.pem"},
    {"for the robots of a network where everybody may move them",
     "openpi serve pi05_droid/ --config pi05_droid --host 0.0.0.0 --trust-network"},
    {"a token for a robot that makes ten calls a second",
     "openpi serve --new-token arm1 --class reserved --rate 10 >> tokens"},
    {"two GPUs, one queue", "openpi serve pi05_droid/ --config pi05_droid --device cuda:0,cuda:1"},
    {"is it ready?", "curl http://127.0.0.1:8000/healthz"},
    {"what Prometheus reads", "curl http://127.0.0.1:8642/metrics"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"CHECKPOINT [options]",
                                       "--synthetic PRESET[:pi0|pi05[:SEED]] [options]",
                                       "--new-token NAME [--class reserved --rate N | --class admin]", NULL};

const verb verb_serve = {
    .name = "serve",
    .summary = "a policy server that robots talk to as to openpi's own",
    .synopsis = synopsis,
    .positional = "CHECKPOINT",
    .positional_max = 1,
    .description =
        "Loads a model and answers robots over WebSocket, with the messages of openpi's own server: programs "
        "that use openpi-client work unchanged. It listens when the model has answered a first call.\n\n"
        "A request that does not fit the robot is answered with one sentence, which the client raises as an "
        "error; the connection lives on. SIGTERM and SIGINT drain: the port is closed, requests that came "
        "whole are answered, and the connections are closed with code 1001. SIGHUP reads the certificate "
        "and the tokens again and loads the checkpoint again, beside the one that runs.",
    .options = options,
    .conflicts = conflicts,
    .alone = &alone,
    .examples = examples,
    .values_bytes = sizeof(serve_values),
    .defaults = &defaults,
    .own_signals = 1,
    .run = serve_run,
};
