/* A librocm_smi64 of two boards, for test_hip_power: the numbers are this file's, the test changes them
 * through fake_smi_state. Board 1 has the address that the fake libamdhip64 gives its device 0. */
#include "fake_smi.h"

#include <stdio.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

enum { INVALID = 1, NOT_SUPPORTED = 2 };

extern EXPORTED fake_smi fake_smi_state;
EXPORTED fake_smi fake_smi_state = {
    .address = {0x1900, 0x3b00}, .count = {500, 1000}, .unit = 15.259f, .flag = 1};

#define X(member, symbol, needed, parameters) EXPORTED int symbol parameters;
SMI_LIST(X)
#undef X

#define KNOWN(device) \
    if (!fake_smi_state.started || (device) > 1) return INVALID

int rsmi_init(uint64_t flags) {
    if (flags || fake_smi_state.init_code) return fake_smi_state.init_code;
    fake_smi_state.started++;
    return 0;
}

int rsmi_shut_down(void) {
    fake_smi_state.started--;
    return 0;
}

int rsmi_status_string(int error, const char **text) {
    *text = error == NOT_SUPPORTED ? "not supported" : "some error";
    return 0;
}

int rsmi_num_monitor_devices(uint32_t *count) {
    *count = 2;
    return 0;
}

int rsmi_dev_pci_id_get(uint32_t device, uint64_t *address) {
    KNOWN(device);
    *address = fake_smi_state.address[device];
    return 0;
}

int rsmi_dev_energy_count_get(uint32_t device, uint64_t *count, float *microjoules, uint64_t *nanoseconds) {
    KNOWN(device);
    if (fake_smi_state.energy_code) return fake_smi_state.energy_code;
    *count = fake_smi_state.count[device];
    *microjoules = fake_smi_state.unit;
    *nanoseconds = 1;
    return 0;
}

int rsmi_dev_name_get(uint32_t device, char *text, size_t bytes) {
    KNOWN(device);
    snprintf(text, bytes, "board %u", device);
    return 0;
}

int rsmi_version_str_get(int component, char *text, uint32_t bytes) {
    if (component != SMI_DRIVER) return INVALID;
    snprintf(text, bytes, "6.12.12");
    return 0;
}

int rsmi_dev_current_socket_power_get(uint32_t device, uint64_t *microwatts) {
    KNOWN(device);
    if (fake_smi_state.only_mean) return NOT_SUPPORTED;
    *microwatts = 700500000;
    return 0;
}

int rsmi_dev_power_ave_get(uint32_t device, uint32_t sensor, uint64_t *microwatts) {
    KNOWN(device);
    if (sensor) return INVALID;
    *microwatts = 650250000;
    return 0;
}

int rsmi_dev_power_cap_get(uint32_t device, uint32_t sensor, uint64_t *microwatts) {
    KNOWN(device);
    if (sensor) return INVALID;
    *microwatts = 750000000;
    return 0;
}

/* Three frequencies, the middle one in force. */
int rsmi_dev_gpu_clk_freq_get(uint32_t device, int which, uint32_t *frequencies) {
    uint64_t core[] = {132000000, 1900000000, 2100000000}, memory[] = {900000000, 1300000000, 1300000000};
    int at = fake_smi_state.flag;
    KNOWN(device);
    if (which != SMI_CLOCK_CORE && which != SMI_CLOCK_MEMORY) return NOT_SUPPORTED;
    if (at) frequencies[0] = 0;
    frequencies[at] = 3;
    frequencies[at + 1] = 1;
    memcpy(frequencies + (at ? 4 : 2), which == SMI_CLOCK_CORE ? core : memory, sizeof core);
    return 0;
}
