/* Listing GPUs over a driver that fails: a card that is lost, full or not there is listed with the driver's
 * reason, opening it says the same, and nothing is kept. */
#include "fake_gpu.h"
#include "scratch.h"

static openpi_device listed;
static openpi_error error = OPENPI_ERROR_INIT;

static int refuse(gpu_driver *driver, char *why, size_t why_bytes) {
    (void)driver;
    snprintf(why, why_bytes, "libfake.so.1 does not open");
    return -1;
}

static int no_devices(int *count) { return *count = 0, called("device_count"); }

static int open_empty(gpu_driver *driver, char *why, size_t why_bytes) {
    cuda_library *library = malloc(sizeof *library);
    (void)why, (void)why_bytes;
    assert_non_null(library);
    *library = fake_library;
    library->device_count = no_devices;
    cuda_driver_over(library, driver);
    return 0;
}

/* The one entry of the list, which holds what openpi_devices gives out. */
static void list(const gpu_vendor *vendor) {
    memset(&listed, 0xff, sizeof listed);
    assert_int_equal(gpu_devices(vendor, &listed, 1), 1);
    assert_int_equal(gpu_devices(vendor, NULL, 0), 1);
    assert_int_equal(fake.alive, 0);
}

static void check_unusable(const char *name, const char *reason) {
    assert_string_equal(listed.name, name);
    assert_false(listed.usable);
    assert_string_equal(listed.path, "");
    assert_string_equal(listed.reason, reason);
}

static void a_card_that_answers(void **state) {
    (void)state;
    reset();
    list(fake_vendor());
    assert_string_equal(listed.name, "cuda:0");
    assert_string_equal(listed.reason, "");
    assert_string_equal(listed.path, "hopper");
    assert_true(listed.usable && listed.memory_bytes == UINT64_C(1) << 33 && !listed.shared_memory);
    assert_non_null(strstr(listed.description, "Paper GPU, compute capability 9.0, driver for CUDA 13.0"));
}

/* The table of chips says which path a card takes, and what the others need. */
static void path_of_a_card(void **state) {
    static const struct {
        int capability;
        const char *path, *found;          /* found NULL: it may have the other path, too */
    } cards[] = {{80, "portable", "8.0"}, {89, "portable", "8.9"}, {90, "hopper", NULL},
                 {100, "portable", "10.0"}, {121, "portable", "12.1"}};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        const device_options options = {.path = "hopper"};
        char refused[200];
        device *device = NULL;
        reset();
        fake.capability = cards[i].capability;
        list(fake_vendor());
        assert_string_equal(listed.path, cards[i].path);
        if (!cards[i].found) continue;
        snprintf(refused, sizeof refused,
                 "path hopper on cuda:0 needs compute capability 9.0, this device has %s", cards[i].found);
        assert_int_equal(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error),
                         OPENPI_UNSUPPORTED);
        assert_string_equal(error.message, refused);
        assert_int_equal(fake.alive, 0);
    }
}

/* A card without memory of its own says so. What it may still use are the driver's free bytes or, where that
 * is more, what the kernel would give: pages of a checkpoint that was copied just now are not lost. */
static void an_integrated_card(void **state) {
    static const struct {
        int integrated;
        const char *kb;                    /* available, of meminfo */
        uint64_t unused;
    } cases[] = {{0, "3145728", 1 << 30}, {1, "3145728", UINT64_C(3) << 30}, {1, "1024", 1 << 30},
                 {1, "99999999", UINT64_C(1) << 32}, {1, "", 1 << 30}};
    scratch proc;
    (void)state;
    assert_int_equal(scratch_open(&proc), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const device_options options = {.pool = NULL};
        device *device = NULL;
        uint64_t unused = 0, total = 0;
        char text[120];
        reset();
        fake.integrated = cases[i].integrated;
        fake.proc = proc.folder;
        fake.capability = 110;
        unlink(scratch_path(&proc, "meminfo"));
        snprintf(text, sizeof text, "MemTotal: 9 kB\nMemAvailable: %s kB\nSwapFree: 77777777 kB\n",
                 cases[i].kb);
        if (*cases[i].kb) assert_int_equal(scratch_write(&proc, "meminfo", text, strlen(text)), 0);
        list(fake_vendor());
        assert_int_equal(listed.shared_memory, cases[i].integrated);
        assert_int_equal(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error),
                         OPENPI_OK);
        assert_int_equal(device->shared_memory, cases[i].integrated);
        fake.memory += UINT64_C(3) << 30;  /* in use */
        assert_int_equal(gpu_memory(device, &unused, &total, &error), OPENPI_OK);
        fake.memory -= UINT64_C(3) << 30;
        assert_true(total == UINT64_C(1) << 32);
        if (unused != cases[i].unused) fail_msg("case %zu: %llu unused", i, (unsigned long long)unused);
        gpu_close(device);
        assert_int_equal(fake.alive, 0);
    }
    scratch_close(&proc);
}

/* Each driver call that listing needs fails, as on a card that fell off the bus and on one without free
 * memory. */
static void a_card_that_does_not(void **state) {
    static const char *const calls[] = {"device_get", "device_name", "device_memory", "device_attribute",
                                        "driver_version"};
    static const struct {
        int code;
        const char *text;
    } faults[] = {{SICK, "unspecified launch failure"}, {CUDA_OUT_OF_MEMORY, "out of memory"}};
    (void)state;
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
            const device_options options = {.pool = NULL};
            char reason[200], sentence[400];
            device *device = NULL;
            reset();
            fake.fail_at = 0;
            fake.fail_name = calls[c];
            fake.code = faults[f].code;
            snprintf(reason, sizeof reason, "the driver does not answer for it: %s (error %d)",
                     faults[f].text, faults[f].code);
            list(fake_vendor());
            check_unusable("cuda:0", reason);
            assert_int_equal(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error),
                             OPENPI_NO_DEVICE);
            assert_null(device);
            snprintf(sentence, sizeof sentence, "cannot be used: %s", reason);
            assert_non_null(strstr(error.message, sentence));
            assert_int_equal(fake.alive, 0);
        }
    }
}

/* A chip or a driver that takes nothing of the image: one sentence with the device, and what would do. */
static void no_code_for_it(void **state) {
    static const int codes[] = {209, 221, 222};
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const device_options options = {.pool = NULL};
        device *device = NULL;
        char named[32];
        reset();
        fake.capability = 87;
        fake.fail_at = 0;
        fake.fail_name = "module_load";
        fake.code = codes[i];
        snprintf(named, sizeof named, "(error %d) at ", codes[i]);
        assert_int_equal(gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error),
                         OPENPI_NO_DEVICE);
        const char *const says[] = {
            "cuda:0 (Paper GPU, compute capability 8.7, driver for CUDA 13.0): its driver takes no machine "
            "code of this openpi: some error ",
            named, ", expected a build for it"};
        for (size_t part = 0; part < sizeof says / sizeof *says; part++)
            if (!strstr(error.message, says[part])) fail_msg("%s", error.message);
        assert_int_equal(fake.alive, 0);
    }
}

/* A build with code of two compilers: the driver's version decides, and where it is older than both, a
 * sentence says what the older one needs. */
static void two_compilers(void **state) {
    static const struct {
        int driver, compilers[CUDA_COMPILERS], older;      /* -1: refused                                   */
        const char *reason;
    } cases[] = {
        {13000, {13000, 12040}, 0, ""},
        {13020, {13000, 12040}, 0, ""},
        {14000, {13000, 12040}, 0, ""},
        {12090, {13000, 12040}, 1, ""},
        {12060, {13000, 12040}, 1, ""},
        {12020, {13000, 12040}, 1, ""},
        {11080, {13000, 12040}, -1, "the driver is for CUDA 11.8, expected 12.0 or newer"},
        {12060, {13000, 0}, -1, "the driver is for CUDA 12.6, expected 13.0 or newer"},
        {12060, {12040, 0}, 0, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const device_options options = {.pool = NULL};
        device *device = NULL;
        reset();
        fake.capability = 87;
        fake.driver_version = cases[i].driver;
        memcpy(fake_compilers, cases[i].compilers, sizeof fake_compilers);
        list(fake_vendor());
        assert_string_equal(listed.reason, cases[i].reason);
        openpi_status status = gpu_open(fake_vendor(), &backend_cuda, "cuda:0", &options, &device, &error);
        assert_int_equal(status, cases[i].older < 0 ? OPENPI_NO_DEVICE : OPENPI_OK);
        if (status == OPENPI_OK) {
            int loads = 0;
            for (int call = 0; call < fake.calls && call < LOG; call++)
                loads += !strcmp(fake.log[call], "module_load");
            assert_true(loads > 5);
            assert_int_equal(fake.older_loads, cases[i].older ? loads : 0);
            gpu_close(device);
        }
        assert_int_equal(fake.alive, 0);
    }
    memcpy(fake_compilers, cases[0].compilers, sizeof fake_compilers);
}

static void no_card(void **state) {
    gpu_vendor vendor = *fake_vendor();
    (void)state;
    reset();
    fake.fail_at = 0;
    fake.fail_name = "device_count";
    list(&vendor);
    check_unusable("cuda", "unspecified launch failure (error 719)");
    reset();
    vendor.open = open_empty;
    list(&vendor);
    check_unusable("cuda", "the NVIDIA driver sees no GPU");
    vendor.open = refuse;
    list(&vendor);
    check_unusable("cuda", "libfake.so.1 does not open");
}

/* What the build lacks comes first: a driver would not help. */
static int no_driver(gpu_driver *driver, char *why, size_t why_bytes) {
    (void)driver;
    snprintf(why, why_bytes, "no driver here");
    return -1;
}

static void build_first(void **state) {
    (void)state;
    static const gpu_module none[] = {{NULL, NULL, NULL, 0}};
    static const int image = 1;
    static const gpu_module some[] = {{NULL, &image, NULL, 0}, {NULL, NULL, NULL, 0}};
    gpu_vendor vendor = gpu_vendor_cuda;
    openpi_device device = OPENPI_DEVICE_INIT;
    vendor.open = no_driver;
    vendor.modules = none;
    assert_non_null(strstr(vendor.no_kernels, "this openpi was built without CUDA kernels ("));
    assert_int_equal(gpu_devices(&vendor, &device, 1), 1);
    assert_int_equal(strncmp(device.reason, vendor.no_kernels, strlen(vendor.no_kernels)), 0);
    assert_non_null(strstr(device.reason, "); no driver here"));
    vendor.modules = some;
    assert_int_equal(gpu_devices(&vendor, &device, 1), 1);
    assert_string_equal(device.reason, "no driver here");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_that_answers), cmocka_unit_test(path_of_a_card),
        cmocka_unit_test(an_integrated_card),
        cmocka_unit_test(a_card_that_does_not),
        cmocka_unit_test(no_code_for_it), cmocka_unit_test(two_compilers),
        cmocka_unit_test(no_card), cmocka_unit_test(build_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
