/* A library for LD_PRELOAD, which takes the device away from a program that computes on it: once the file
 * that LOSE_DEVICE names is there, with the number of a GPU in it, a thread of this library launches a kernel
 * that traps in the GPU's primary context. That is the context of the program, so the driver breaks it, and
 * every call after that fails as it does when a GPU falls off the bus. tools/serve-check uses it. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LOOK_US = 10000 };

static const char trap[] = ".version 7.0\n"
                           ".target sm_52\n"
                           ".address_size 64\n"
                           ".visible .entry lose() { trap; }\n";

typedef struct driver {
    int (*get)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*enter)(void *context);
    int (*load)(void **module, const void *image);
    int (*find)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                  void **extra);
    int (*wait)(void);
} driver;

/* The program has loaded and initialised the library by then. */
static int open_driver(driver *d) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 0;
    *(void **)&d->get = dlsym(library, "cuDeviceGet");
    *(void **)&d->retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&d->enter = dlsym(library, "cuCtxSetCurrent");
    *(void **)&d->load = dlsym(library, "cuModuleLoadData");
    *(void **)&d->find = dlsym(library, "cuModuleGetFunction");
    *(void **)&d->launch = dlsym(library, "cuLaunchKernel");
    *(void **)&d->wait = dlsym(library, "cuCtxSynchronize");
    return d->get && d->retain && d->enter && d->load && d->find && d->launch && d->wait;
}

static void lose(int ordinal) {
    driver d;
    void *context, *module, *function;
    int device, code = -1;
    if (open_driver(&d) && !(code = d.get(&device, ordinal)) && !(code = d.retain(&context, device)) &&
        !(code = d.enter(context)) && !(code = d.load(&module, trap)) &&
        !(code = d.find(&function, module, "lose")) &&
        !(code = d.launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)))
        code = d.wait();
    fprintf(stderr, "lose_device: the kernel that traps on GPU %d ended with error %d\n", ordinal, code);
}

static void *wait_for_order(void *path) {
    FILE *file;
    int ordinal = 0;
    while (!(file = fopen(path, "re"))) usleep(LOOK_US);
    if (fscanf(file, "%d", &ordinal) == 1) lose(ordinal);
    fclose(file);
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    char *path = getenv("LOSE_DEVICE");
    pthread_t thread;
    if (path && !pthread_create(&thread, NULL, wait_for_order, path)) pthread_detach(thread);
}
