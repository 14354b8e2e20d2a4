/* The functions of AMD's system management library in use, a table that smi_open fills from librocm_smi64.
 * Every function but the table's own returns 0 or the library's error number.
 *
 * Note: never tried on hardware; tests/gpu/hip/smi_library.c is a library of the same form. */
#ifndef BACKEND_GPU_HIP_SMI_H
#define BACKEND_GPU_HIP_SMI_H

#include <stddef.h>
#include <stdint.h>

/* X(member, symbol, needed, parameters) */
#define SMI_LIST(X)                                                                                          \
    X(init, rsmi_init, 1, (uint64_t flags))                                                                  \
    X(shutdown, rsmi_shut_down, 1, (void))                                                                   \
    X(error_text, rsmi_status_string, 1, (int error, const char **text))                                     \
    X(count, rsmi_num_monitor_devices, 1, (uint32_t *count))                                                 \
    X(address, rsmi_dev_pci_id_get, 1, (uint32_t device, uint64_t *address))                                 \
    X(energy, rsmi_dev_energy_count_get, 1,                                                                  \
      (uint32_t device, uint64_t *count, float *microjoules, uint64_t *nanoseconds))                         \
    X(name, rsmi_dev_name_get, 0, (uint32_t device, char *text, size_t bytes))                               \
    X(driver_version, rsmi_version_str_get, 0, (int component, char *text, uint32_t bytes))                  \
    X(power_now, rsmi_dev_current_socket_power_get, 0, (uint32_t device, uint64_t *microwatts))              \
    X(power_mean, rsmi_dev_power_ave_get, 0, (uint32_t device, uint32_t sensor, uint64_t *microwatts))       \
    X(power_limit, rsmi_dev_power_cap_get, 0, (uint32_t device, uint32_t sensor, uint64_t *microwatts))      \
    X(clock, rsmi_dev_gpu_clk_freq_get, 0, (uint32_t device, int which, uint32_t *frequencies))

enum { SMI_CLOCK_CORE = 0, SMI_CLOCK_MEMORY = 4, SMI_DRIVER = 0 };

/* What `clock` writes: how many frequencies there are, which one is in force, and the list in Hz, 8 bytes
 * each. Newer libraries have a flag before them. */
enum { SMI_FREQUENCY_WORDS = 128, SMI_FREQUENCIES = 33 };

typedef struct smi {
#define X(member, symbol, needed, parameters) int(*member) parameters;
    SMI_LIST(X)
#undef X
} smi;

/* Fills the table; 0, or -1 with the reason in `why` (at least 200 bytes). */
int smi_open(smi *smi, char *why, size_t why_bytes);

/* The frequency in force and the highest one, in MHz; 0: the words make no sense. */
double smi_frequency(const uint32_t words[SMI_FREQUENCY_WORDS], int highest);

/* The PCI address of the runtime's device, "0000:19:00.0", in the process's own counting, which environment
 * variables may have changed. 0 or -1. */
int smi_device_address(int ordinal, char *text, int bytes);
/* The same as the library counts it; -1: it is no address. */
int smi_parse_address(const char *text, uint64_t *address);

#endif
