/* Which rails are a module's whole power differs from board to board: a table. Names of files:
 *
 *   /sys/bus/i2c/devices/ADDRESS/name                          "ina3221"
 *   /sys/bus/i2c/devices/ADDRESS/hwmon/hwmonN/inC_label        a channel's rail, "VDD_IN"
 *                                        .../inC_input         mV
 *                                        .../currC_input       mA
 *   /sys/class/devfreq/NAME/{cur,min,max}_freq                 Hz; 17000000.gpu (Orin), gpu-gpc-0 (Thor)
 *   /var/lib/nvpmodel/status                                   "pmode:0002"
 *   /etc/nvpmodel.conf                                         "< POWER_MODEL ID=2 NAME=MODE_30W >"
 *
 * Note: channel 7 of a monitor is the sum of its shunts' voltages, no rail. */
#include "backend/gpu/cuda/jetson.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/report.h"
#include "base/threads.h"

enum { PATH = 512, RAILS = 3, CHANNELS = 3, TICK_MS = 20 };

/* Boards by the rails that are their whole power. */
static const char *const boards[][RAILS] = {
    {"VDD_IN"},                                        /* Orin NX, Orin Nano: all that the module takes   */
    {"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"},      /* AGX Orin                                        */
    {"VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"},     /* AGX Thor                                        */
};

static const char *const gpu_clocks[] = {"17000000.gpu", "17000000.ga10b", "gpu-gpc-0"};

typedef struct jetson {
    char millivolts[RAILS][PATH], milliamperes[RAILS][PATH];
    int rails;
    char clock[PATH];                      /* the GPU's devfreq folder; "": not found                      */
    pthread_t thread;
    int runs;                              /* 1: the thread has been started                                */
    pthread_mutex_t lock;                  /* guards what follows                                           */
    pthread_cond_t stopped;
    int stop, failed;
    double joules, watts;
} jetson;

/* ---- files -------------------------------------------------------------------------------------------- */

/* 0, or -1: the path is too long. */
static int join(char path[PATH], const char *folder, const char *name) {
    return snprintf(path, PATH, "%s/%s", folder, name) < PATH ? 0 : -1;
}

/* The first line; 0 or -1. */
static int read_line(const char *path, char *text, int bytes) {
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    char *got = fgets(text, bytes, file);
    fclose(file);
    if (got) text[strcspn(text, "\n")] = 0;
    return got ? 0 : -1;
}

static int read_number(const char *path, double *number) {
    char text[64], *end;
    if (read_line(path, text, sizeof text)) return -1;
    *number = ascii_number(text, &end);
    return end == text ? -1 : 0;
}

static double number_in(const char *folder, const char *name) {
    char path[PATH];
    double number;
    return join(path, folder, name) || read_number(path, &number) ? 0 : number;
}

/* ---- rails -------------------------------------------------------------------------------------------- */

typedef struct rail {
    char name[32], millivolts[PATH], milliamperes[PATH];
} rail;

typedef struct rail_list {
    rail rails[16];
    int count;
} rail_list;

/* The channels of a monitor that have a name. */
static void add_channels(rail_list *list, const char *folder) {
    for (int c = 1; c <= CHANNELS; c++) {
        char path[PATH], name[24];
        rail *r = &list->rails[list->count];
        if (list->count == (int)(sizeof list->rails / sizeof *list->rails)) return;
        snprintf(name, sizeof name, "in%d_label", c);
        if (join(path, folder, name) || read_line(path, r->name, sizeof r->name)) continue;
        snprintf(name, sizeof name, "in%d_input", c);
        if (join(r->millivolts, folder, name)) continue;
        snprintf(name, sizeof name, "curr%d_input", c);
        list->count += !join(r->milliamperes, folder, name);
    }
}

/* Calls `each` for every entry of a folder, but "." and "..", with its whole path. */
static void walk(const char *folder, void (*each)(rail_list *list, const char *path), rail_list *list) {
    DIR *entries = opendir(folder);
    char path[PATH];
    for (const struct dirent *e; entries && (e = readdir(entries)) != NULL;)
        if (e->d_name[0] != '.' && !join(path, folder, e->d_name)) each(list, path);
    if (entries) closedir(entries);
}

static void add_monitor(rail_list *list, const char *device) {
    char path[PATH], name[32];
    if (join(path, device, "name") || read_line(path, name, sizeof name) || strcmp(name, "ina3221")) return;
    if (!join(path, device, "hwmon")) walk(path, add_channels, list);
}

static rail_list find_rails(const char *root) {
    rail_list list = {.count = 0};
    char path[PATH];
    if (!join(path, root, "sys/bus/i2c/devices")) walk(path, add_monitor, &list);
    return list;
}

static const rail *rail_named(const rail_list *list, const char *name) {
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->rails[i].name, name)) return &list->rails[i];
    return NULL;
}

/* The first board whose rails are all there; NULL: none. */
static const char *const *find_board(const rail_list *list) {
    for (size_t b = 0; b < sizeof boards / sizeof *boards; b++) {
        int missing = 0;
        for (int i = 0; i < RAILS; i++) missing += boards[b][i] && !rail_named(list, boards[b][i]);
        if (!missing) return boards[b];
    }
    return NULL;
}

/* Watts of all rails now; 0 or -1. */
static int read_watts(const jetson *j, double *watts) {
    *watts = 0;
    for (int i = 0; i < j->rails; i++) {
        double millivolts, milliamperes;
        if (read_number(j->millivolts[i], &millivolts) || read_number(j->milliamperes[i], &milliamperes))
            return -1;
        *watts += millivolts * milliamperes * 1e-6;
    }
    return 0;
}

/* ---- power mode and clocks ---------------------------------------------------------------------------- */

/* The name of a mode in nvpmodel's table. */
static void name_mode(const char *root, int mode, char *name, size_t bytes) {
    char path[PATH], line[256], found[64];
    int id;
    FILE *file = join(path, root, "etc/nvpmodel.conf") ? NULL : fopen(path, "r");
    while (file && !name[0] && fgets(line, sizeof line, file))
        if (sscanf(line, " < POWER_MODEL ID=%d NAME=%63s", &id, found) == 2 && id == mode)
            snprintf(name, bytes, "%s", found);
    if (file) fclose(file);
}

static void find_mode(const char *root, power_facts *f) {
    char path[PATH], text[64], name[64] = "";
    int mode;
    if (join(path, root, "var/lib/nvpmodel/status") || read_line(path, text, sizeof text)) return;
    if (sscanf(text, "pmode:%d", &mode) != 1) return;
    name_mode(root, mode, name, sizeof name);
    snprintf(f->mode, sizeof f->mode, "%s%s%d", name, name[0] ? ", nvpmodel " : "nvpmodel ", mode);
}

static void find_clock(const char *root, char folder[PATH]) {
    char path[PATH], file[PATH];
    for (size_t i = 0; i < sizeof gpu_clocks / sizeof *gpu_clocks; i++) {
        double hz;
        if (snprintf(path, sizeof path, "%s/sys/class/devfreq/%s", root, gpu_clocks[i]) >= PATH) return;
        if (join(file, path, "cur_freq") || read_number(file, &hz)) continue;
        snprintf(folder, PATH, "%s", path);
        return;
    }
}

/* What jetson_clocks does: the lowest clock becomes the highest. */
static void judge_clocks(const jetson *j, power_facts *f) {
    if (!j->clock[0]) return;
    double least = number_in(j->clock, "min_freq") * 1e-6, most = number_in(j->clock, "max_freq") * 1e-6;
    f->core_max_mhz = most;
    if (least < most)
        ascii_print(f->advice, sizeof f->advice,
                    "the GPU's clock moves between %.0f and %.0f MHz: jetson_clocks, as root, holds it at "
                    "the highest",
                    least, most);
}

/* ---- the counter -------------------------------------------------------------------------------------- */

int jetson_serves(const char *root, const char *device) {
    if (strcmp(device, "cpu") && strcmp(device, "cuda") && strncmp(device, "cuda:", 5)) return 0;
    const rail_list list = find_rails(root);
    return find_board(&list) != NULL;
}

static int serves(const char *device) { return jetson_serves("", device); }

/* Adds up until it is stopped or a rail cannot be read. */
static void *count(void *argument) {
    jetson *j = argument;
    double last = clock_ms();
    pthread_mutex_lock(&j->lock);
    while (!j->stop && !j->failed) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TICK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&j->stopped, &j->lock, &until);
        pthread_mutex_unlock(&j->lock);
        double watts, now;
        int failed = read_watts(j, &watts);
        now = clock_ms();
        pthread_mutex_lock(&j->lock);
        j->failed = failed;
        if (failed) break;
        j->joules += 0.5 * (j->watts + watts) * (now - last) * 1e-3;
        j->watts = watts;
        last = now;
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static void use_rails(jetson *j, const rail_list *list, const char *const *names, power_facts *f) {
    for (int i = 0; i < RAILS && names[i]; i++) {
        const rail *r = rail_named(list, names[i]);
        size_t used = strlen(f->matched);
        memcpy(j->millivolts[i], r->millivolts, PATH);
        memcpy(j->milliamperes[i], r->milliamperes, PATH);
        snprintf(f->matched + used, sizeof f->matched - used, "%s%s", i ? " + " : "rails ", names[i]);
        j->rails++;
    }
}

static void start(jetson *j, const char *root, power_facts *f) {
    const rail_list list = find_rails(root);
    const char *const *board = find_board(&list);
    char path[PATH];
    if (!join(path, root, "sys/firmware/devicetree/base/model")) read_line(path, f->name, sizeof f->name);
    find_mode(root, f);
    find_clock(root, j->clock);
    judge_clocks(j, f);
    if (board) use_rails(j, &list, board, f);
    if (!board)
        snprintf(f->reason, sizeof f->reason,
                 "no INA3221 below %.100s/sys/bus/i2c/devices has a board's rails", root);
    else if (read_watts(j, &j->watts))
        snprintf(f->reason, sizeof f->reason, "%.64s cannot be read", f->matched);
    else if ((j->runs = !thread_start(&j->thread, count, j)) == 0)
        snprintf(f->reason, sizeof f->reason, "the thread that reads the rails cannot be started");
}

openpi_status jetson_open(const char *root, power_facts *facts, void **state, openpi_error *error) {
    jetson *j = calloc(1, sizeof *j);
    if (!j) return report_no_memory(error, sizeof *j, "the power reader");
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->stopped, NULL);
    start(j, root, facts);
    *state = j;
    return OPENPI_OK;
}

static openpi_status open_counter(const char *device, power_facts *facts, void **state, openpi_error *error) {
    (void)device;
    return jetson_open("", facts, state, error);
}

static void close_counter(void *state) {
    jetson *j = state;
    pthread_mutex_lock(&j->lock);
    j->stop = 1;
    pthread_cond_signal(&j->stopped);
    pthread_mutex_unlock(&j->lock);
    if (j->runs) pthread_join(j->thread, NULL);
    pthread_cond_destroy(&j->stopped);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

static openpi_status energy(void *state, double *joules, openpi_error *error) {
    jetson *j = state;
    pthread_mutex_lock(&j->lock);
    *joules = j->joules;
    int failed = j->failed;
    pthread_mutex_unlock(&j->lock);
    if (!failed) return OPENPI_OK;
    return report(error, OPENPI_SYSTEM, "the rails can no longer be read: %.400s", j->millivolts[0]);
}

static void sample(const void *state, power_reading *out) {
    const jetson *j = state;
    if (j->rails && read_watts(j, &out->watts)) out->watts = 0;
    if (j->clock[0]) out->core_mhz = number_in(j->clock, "cur_freq") * 1e-6;
}

const power_counter power_counter_jetson = {
    .name = "INA3221",
    .serves = serves,
    .open = open_counter,
    .close = close_counter,
    .energy = energy,
    .sample = sample,
};
