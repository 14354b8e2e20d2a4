/* Requests to the admin port of `openpi serve`. The input's first byte says what follows:
 *   a  the value of --admin
 *   o  a request where no token is asked for, as lines: method, path, Host, Origin, Authorization
 *   t  the same where a token of the class admin is
 * Promised is that the server is drained, reloaded and its weights changed for those only who may. */
#include <strings.h>

#include "fuzz.h"
#include "serve/admin/admin.h"

static const char key[] = "sesame";
static int drained, reloaded, updated;

static void drain(void *user) {
    (void)user;
    drained++;
}

static void reload_all(void *user) {
    (void)user;
    reloaded++;
}

static serve_model *opened(void) {
    static serve_model *served;
    if (served) return served;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    options.synthetic = &synthetic;
    options.robot = "aloha";
    PROMISE(openpi_synthetic_parse("tiny", &synthetic, &error) == OPENPI_OK);
    PROMISE(model_open(NULL, &options, 0, 1, &served, &error) == OPENPI_OK);
    return served;
}

/* There are one model and no threads that prepare requests for it, no scheduler, and nothing to reload. */
serve_model *__wrap_prepare_model(prepare *prepare);
serve_model *__wrap_prepare_model(prepare *prepare) {
    (void)prepare;
    return model_hold(opened());
}

void __wrap_reload_look(reload *reload, char text[RELOAD_TEXT]);
void __wrap_reload_look(reload *reload, char text[RELOAD_TEXT]) {
    (void)reload;
    snprintf(text, RELOAD_TEXT, "not reloaded");
}

/* Whatever stands behind "/weights/"; NULL: "/restore". */
update_wish __wrap_update_ask(reload *reload, const char *name);
update_wish __wrap_update_ask(reload *reload, const char *name) {
    (void)reload;
    if (name && strlen(name) % 2) return UPDATE_NO_NAME;
    updated++;
    return UPDATE_ASKED;
}

void __wrap_update_look(reload *reload, char text[RELOAD_TEXT]);
void __wrap_update_look(reload *reload, char text[RELOAD_TEXT]) {
    (void)reload;
    snprintf(text, RELOAD_TEXT, "not updated");
}

update_served __wrap_update_look_served(reload *reload);
update_served __wrap_update_look_served(reload *reload) {
    (void)reload;
    return (update_served){.name = "step \"1\"", .when = "now", .tensors = 3};
}

scheduler_state __wrap_dispatch_state(dispatch *dispatch);
scheduler_state __wrap_dispatch_state(dispatch *dispatch) {
    (void)dispatch;
    return (scheduler_state){.connections = 0};
}

static void split(const char *text) {
    char host[ADMIN_HOST];
    int port = -1;
    openpi_error error = OPENPI_ERROR_INIT;
    if (!went_well(admin_split(text, host, &port, &error), &error)) return;
    PROMISE(host[0] && strlen(host) < ADMIN_HOST && port >= 0 && port <= 65535);
}

/* The next line; what follows it is *rest. */
static const char *line(char **rest) {
    char *begin = *rest;
    size_t count = strcspn(begin, "\n");
    *rest = begin + count + (begin[count] != 0);
    begin[count] = 0;
    return begin;
}

static net_method method_of(const char *name) {
    return !strcmp(name, "GET") ? NET_GET : !strcmp(name, "HEAD") ? NET_HEAD
         : !strcmp(name, "POST") ? NET_POST : NET_OTHER;
}

/* An address has no letter after f. */
static int is_here(const char *host) {
    size_t count = host[0] == '[' ? strcspn(host, "]") : strcspn(host, ":");
    if (count == 9 && !strncasecmp(host, "localhost", count)) return 1;
    if (count == 14 && !strncasecmp(host, "robots.example", count)) return 1;
    return strspn(host, "[0123456789abcdefABCDEF.:") >= count;
}

static int has_key(const char *authorization) {
    static const char *const schemes[] = {"Bearer ", "Api-Key "};
    for (int i = 0; i < 2; i++) {
        size_t count = strlen(schemes[i]);
        if (strncasecmp(authorization, schemes[i], count)) continue;
        return !strcmp(authorization + count + strspn(authorization + count, " "), key);
    }
    return 0;
}

static int may_command(const net_head *head, int with_token) {
    char own[2][NET_HOST + 16];
    snprintf(own[0], sizeof own[0], "http://%s", head->host);
    snprintf(own[1], sizeof own[1], "https://%s", head->host);
    if (*head->origin && strcasecmp(head->origin, own[0]) && strcasecmp(head->origin, own[1])) return 0;
    if (with_token ? !has_key(head->authorization) : !is_here(head->host)) return 0;
    return head->method == NET_POST;
}

static void request(char *text, int with_token) {
    token token = {.name = "me", .admin = 1};
    tokens tokens = {.items = &token, .count = with_token};
    static metrics metrics;
    static connections connections = {.pool = {.horizon = 50, .action_dim = 14}};
    static const state_about about = {.checkpoint = "pi0", .kernels = "k", .address = "a"};
    static logger log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    admin admin = {.host = "robots.example",
                   .about = &about,
                   .tokens = &tokens,
                   .connections = &connections,
                   .metrics = &metrics,
                   .log = &log,
                   .drain = drain,
                   .reload_all = reload_all};
    net_page page = {.status = 0};
    net_head head = {.side = NET_ADMIN, .method = method_of(line(&text))};
    if (!metrics.counts.device_count) {
        metrics_open(&metrics);
        metrics_add_device(&metrics, "cpu");
    }
    PROMISE(digest_sha256(key, strlen(key), token.digest));
    head.path = line(&text);
    head.host = line(&text);
    head.origin = line(&text);
    head.authorization = line(&text);
    if (strlen(head.host) >= NET_HOST) head.host = "?";        /* as net_http.c passes on what is too long  */
    drained = reloaded = updated = 0;
    admin_asked(&admin, &head, &page);
    PROMISE(page.status >= 200 && page.status <= 503 && page.type && page.headers && page.body);
    PROMISE(drained == (page.status == 200 && !strcmp(head.path, "/drain")));
    PROMISE(reloaded == (page.status == 200 && head.method == NET_POST && !strcmp(head.path, "/reload")));
    int weights = head.method == NET_POST && (!strncmp(head.path, "/weights/", 9) ||
                                              !strcmp(head.path, "/restore"));
    PROMISE(updated == (page.status == 200 && weights));
    PROMISE(!(drained || reloaded || updated) || may_command(&head, with_token));
    PROMISE(page.status != 200 || page.bytes > 0);
    size_t sum = 0;
    for (size_t i = 0; i < page.bytes; i++) sum += (unsigned char)page.body[i];
    PROMISE(sum > 0 || !page.bytes);
    text_close(&admin.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    char *text = exact_copy(data + 1, size - 1, 1);
    if (data[0] == 'a') split(text);
    if (data[0] == 'o' || data[0] == 't') request(text, data[0] == 't');
    free(text);
    return 0;
}
