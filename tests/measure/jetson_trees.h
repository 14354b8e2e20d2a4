/* Files of /sys, /etc and /var of three Jetsons, made up after what their kernels name and show. */
#ifndef TESTS_JETSON_TREES_H
#define TESTS_JETSON_TREES_H

#include "scratch.h"

typedef struct tree_file {
    const char *path, *text;
} tree_file;

#define MONITOR(address, n) "sys/bus/i2c/devices/" address "/hwmon/hwmon" #n "/"
#define CHANNEL(folder, c, name, mv, ma) \
    {folder "in" #c "_label", name "\n"}, {folder "in" #c "_input", mv "\n"}, {folder "curr" #c "_input", ma "\n"}
#define MODES "# a comment\n< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=MODE_30W >\n"

/* 12 W + 4 W + 5 W; memory is part of the 5 V rail; jetson_clocks on. */
static const tree_file agx_orin[] = {
    {"sys/firmware/devicetree/base/model", "NVIDIA Jetson AGX Orin Developer Kit\n"},
    {"sys/bus/i2c/devices/1-0040/name", "ina3221\n"},
    CHANNEL(MONITOR("1-0040", 3), 1, "VDD_GPU_SOC", "12000", "1000"),
    CHANNEL(MONITOR("1-0040", 3), 2, "VDD_CPU_CV", "8000", "500"),
    CHANNEL(MONITOR("1-0040", 3), 3, "VIN_SYS_5V0", "5000", "1000"),
    {MONITOR("1-0040", 3) "in7_label", "sum of shunt voltages\n"},
    {"sys/bus/i2c/devices/1-0041/name", "ina3221\n"},
    CHANNEL(MONITOR("1-0041", 4), 1, "NC", "0", "0"),
    CHANNEL(MONITOR("1-0041", 4), 2, "VDDQ_VDD2_1V8AO", "1800", "900"),
    {"sys/bus/i2c/devices/1-0050/name", "24c02\n"},
    {"sys/class/devfreq/17000000.gpu/cur_freq", "1300500000\n"},
    {"sys/class/devfreq/17000000.gpu/min_freq", "1300500000\n"},
    {"sys/class/devfreq/17000000.gpu/max_freq", "1300500000\n"},
    {"var/lib/nvpmodel/status", "pmode:0000\n"},
    {"etc/nvpmodel.conf", MODES},
    {NULL, NULL},
};

/* 9 W go into the module, whatever becomes of them there; jetson_clocks off, a mode without a name. */
static const tree_file orin_nano[] = {
    {"sys/bus/i2c/devices/1-0040/name", "ina3221\n"},
    CHANNEL(MONITOR("1-0040", 1), 1, "VDD_IN", "5000", "1800"),
    CHANNEL(MONITOR("1-0040", 1), 2, "VDD_CPU_GPU_CV", "5000", "600"),
    CHANNEL(MONITOR("1-0040", 1), 3, "VDD_SOC", "5000", "400"),
    {"sys/class/devfreq/17000000.gpu/cur_freq", "306000000\n"},
    {"sys/class/devfreq/17000000.gpu/min_freq", "306000000\n"},
    {"sys/class/devfreq/17000000.gpu/max_freq", "1020000000\n"},
    {"var/lib/nvpmodel/status", "pmode:0007\n"},
    {"etc/nvpmodel.conf", MODES},
    {NULL, NULL},
};

/* 40 W + 10 W + 6 W. */
static const tree_file agx_thor[] = {
    {"sys/firmware/devicetree/base/model", "NVIDIA Jetson AGX Thor Developer Kit\n"},
    {"sys/bus/i2c/devices/2-0040/name", "ina3221\n"},
    CHANNEL(MONITOR("2-0040", 0), 1, "VDD_GPU", "20000", "2000"),
    CHANNEL(MONITOR("2-0040", 0), 2, "VDD_CPU_SOC_MSS", "10000", "1000"),
    CHANNEL(MONITOR("2-0040", 0), 3, "VIN_SYS_5V0", "5000", "1200"),
    {"sys/class/devfreq/gpu-gpc-0/cur_freq", "1050000000\n"},
    {"sys/class/devfreq/gpu-gpc-0/min_freq", "315000000\n"},
    {"sys/class/devfreq/gpu-gpc-0/max_freq", "1575000000\n"},
    {"sys/class/devfreq/gpu-nvd-0/cur_freq", "1000000000\n"},
    {"var/lib/nvpmodel/status", "pmode:0002\n"},
    {"etc/nvpmodel.conf", MODES},
    {NULL, NULL},
};

static inline int tree_write(scratch *box, const tree_file *f) {
    for (; f->path; f++) {
        char folder[200];
        snprintf(folder, sizeof folder, "%s", f->path);
        for (char *slash = folder; (slash = strchr(slash, '/')); slash++) {
            *slash = 0;
            mkdir(scratch_path(box, folder), 0700);
            *slash = '/';
        }
        if (scratch_write(box, f->path, f->text, strlen(f->text))) return -1;
    }
    return 0;
}

#endif
