/* Two cameras (or one, or three) straight into a model: V4L2 devices, read by memory mapping, MJPEG decoded
 * by TurboJPEG or YUYV converted, and the pictures handed to openpi_policy_infer where they lie, with the
 * distance from a row to the next that they have.
 *
 *   cameras CHECKPOINT ROBOT NAME=DEVICE... [--state N,N,...] [--prompt TEXT] and what --help lists
 *
 * A folder of JPEG files, or one file, may stand in for a device: its frames come in the order of their
 * names, again and again. Resizing is the policy's. What the actions are sent to is yours: examples/robot.c
 * has the control loop of an arm.
 *
 * `make test` builds build/tests/cameras. By hand, where openpi is installed:
 *   cc -O2 -D_GNU_SOURCE -o cameras examples/cameras.c \
 *      $(pkg-config --cflags --libs openpi libturbojpeg) -lm */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/videodev2.h>
#include <openpi.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <turbojpeg.h>
#include <unistd.h>

enum { CAMERAS = 3, BUFFERS = 4, STATES = 32, LINE = 64 };

typedef struct options {
    const char *checkpoint, *robot, *prompt, *device;
    double state[STATES];
    int states, width, height, rate, silent_ms, calls, steps;
    uint32_t format;             /* V4L2_PIX_FMT_MJPEG or V4L2_PIX_FMT_YUYV                               */
} options;

typedef struct mapped {
    void *data;
    size_t bytes;
} mapped;

typedef struct camera {
    const char *name, *path;
    int device;                  /* -1: files stand in                                                    */
    int width, height;
    size_t line;                 /* bytes from a row of YUYV to the next, as the driver says              */
    uint32_t format;
    mapped buffers[BUFFERS];
    int buffer_count;
    char *file;                  /* name of the newest file                                               */
    uint8_t *pixels;             /* RGB; row_bytes from a row to the next                                 */
    size_t row_bytes, capacity;
    tjhandle jpeg;
} camera;

static const char help[] =
    "usage: cameras CHECKPOINT ROBOT NAME=DEVICE... [OPTION...]\n"
    "\n"
    "Asks a model for actions, with pictures of one to three cameras.\n"
    "\n"
    "  CHECKPOINT    a folder, or tiny for made-up weights\n"
    "  ROBOT         droid, aloha, libero, none, or a robot's JSON file\n"
    "  NAME=DEVICE   NAME is a key of the robot (observation/wrist_image_left) or a slot (base, left_wrist,\n"
    "                right_wrist). DEVICE is /dev/video0, better its name in /dev/v4l/by-path, which stays the\n"
    "                same after a restart; or a JPEG file or a folder of them\n"
    "  --state N,N,...    what the joints measure (default: zeros, 8 of them)\n"
    "  --prompt TEXT      the instruction\n"
    "  --size WxH         what cameras are asked for (default: 640x480)\n"
    "  --format NAME      mjpeg or yuyv (default: mjpeg; two cameras on one USB hub rarely have room for yuyv)\n"
    "  --rate HZ          frames a second (default: 30)\n"
    "  --silent MS        a camera without a frame for so long is an error (default: 1000)\n"
    "  --calls N          how many (default: 1)\n"
    "  --steps N          denoising steps (default: the checkpoint's)\n"
    "  --device NAME      cpu or cuda:0 (default: cpu)\n"
    "\n"
    "  v4l2-ctl --list-devices and --list-formats-ext tell which devices there are and what they offer.\n"
    "  cameras tiny droid observation/exterior_image_1_left=/dev/video0 \\\n"
    "      observation/wrist_image_left=/dev/video2\n";

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* One sentence; 0, for the caller to return. */
__attribute__((format(printf, 1, 2))) static int say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "cameras: ");
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    return 0;
}

/* ---- V4L2 --------------------------------------------------------------------------------------------- */

static int ask(int device, unsigned long request, void *argument) {
    int result;
    do result = ioctl(device, request, argument);
    while (result < 0 && errno == EINTR);
    return result;
}

static int failed(const camera *c) { return say("%s: %s: %s", c->name, c->path, strerror(errno)); }

static const char *format_name(uint32_t format, char text[5]) {
    for (int i = 0; i < 4; i++) text[i] = (char)(format >> 8 * i);
    text[4] = 0;
    return text;
}

/* The driver answers with what is nearest to what it was asked for. */
static int set_format(camera *c, const options *o) {
    char asked[5], given[5];
    struct v4l2_format f = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE};
    f.fmt.pix.width = (uint32_t)o->width, f.fmt.pix.height = (uint32_t)o->height;
    f.fmt.pix.pixelformat = o->format, f.fmt.pix.field = V4L2_FIELD_ANY;
    if (ask(c->device, VIDIOC_S_FMT, &f) < 0) return failed(c);
    c->format = f.fmt.pix.pixelformat, c->line = f.fmt.pix.bytesperline;
    c->width = (int)f.fmt.pix.width, c->height = (int)f.fmt.pix.height;
    if (c->format != o->format)
        return say("%s: %s offers %s in place of %s, expected another --format or --size", c->name, c->path,
                   format_name(c->format, given), format_name(o->format, asked));
    if (c->line < (size_t)c->width * 2) c->line = (size_t)c->width * 2;
    struct v4l2_streamparm p = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE};
    p.parm.capture.timeperframe = (struct v4l2_fract){1, (uint32_t)o->rate};
    ask(c->device, VIDIOC_S_PARM, &p);                 /* some cameras have one rate, and it is not needed */
    return 1;
}

static int queue_buffer(const camera *c, uint32_t index) {
    struct v4l2_buffer b = {.type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP, .index = index};
    return ask(c->device, VIDIOC_QBUF, &b) == 0 || failed(c);
}

static int map_buffers(camera *c) {
    struct v4l2_requestbuffers r = {
        .count = BUFFERS, .type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP};
    if (ask(c->device, VIDIOC_REQBUFS, &r) < 0)
        return say("%s: %s: %s%s", c->name, c->path, strerror(errno),
                   errno == EBUSY ? ": another program has it" : "");
    for (uint32_t i = 0; i < r.count && i < BUFFERS; i++) {
        struct v4l2_buffer b = {.type = r.type, .memory = r.memory, .index = i};
        void *data = MAP_FAILED;
        if (!ask(c->device, VIDIOC_QUERYBUF, &b))
            data = mmap(NULL, b.length, PROT_READ | PROT_WRITE, MAP_SHARED, c->device, (off_t)b.m.offset);
        if (data == MAP_FAILED) return failed(c);
        c->buffers[c->buffer_count++] = (mapped){data, b.length};
        if (!queue_buffer(c, i)) return 0;
    }
    return 1;
}

static int open_device(camera *c, const options *o) {
    struct v4l2_capability has = {0};
    int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
    if (ask(c->device, VIDIOC_QUERYCAP, &has) < 0) return say("%s: %s is no camera", c->name, c->path);
    uint32_t can = has.capabilities & V4L2_CAP_DEVICE_CAPS ? has.device_caps : has.capabilities;
    if (!(can & V4L2_CAP_VIDEO_CAPTURE) || !(can & V4L2_CAP_STREAMING))
        return say("%s: %s gives no pictures, often the next number does", c->name, c->path);
    if (!set_format(c, o) || !map_buffers(c)) return 0;
    return ask(c->device, VIDIOC_STREAMON, &type) == 0 || failed(c);
}

/* 16 bits of Y and U or V a pixel, BT.601, 16 … 235. */
static uint8_t byte_of(int x) { return (uint8_t)(x < 0 ? 0 : x > 255 * 256 ? 255 : (x + 128) >> 8); }

static void pixel_of(uint8_t *rgb, int y, int u, int v) {
    int light = 298 * (y - 16);
    rgb[0] = byte_of(light + 409 * (v - 128));
    rgb[1] = byte_of(light - 100 * (u - 128) - 208 * (v - 128));
    rgb[2] = byte_of(light + 516 * (u - 128));
}

/* Memory for a picture; rows begin at multiples of a line of cache. */
static int make_room(camera *c, int width, int height) {
    size_t row = ((size_t)width * 3 + LINE - 1) / LINE * LINE, bytes = row * (size_t)height;
    if (bytes > c->capacity) {
        uint8_t *more = realloc(c->pixels, bytes);
        if (!more) return say("%s: out of memory", c->name);
        c->pixels = more, c->capacity = bytes;
    }
    c->width = width, c->height = height, c->row_bytes = row;
    return 1;
}

static int from_yuyv(camera *c, const uint8_t *data, size_t bytes) {
    if (bytes < c->line * (size_t)(c->height - 1) + (size_t)c->width * 2) return 0;
    if (!make_room(c, c->width, c->height)) return 0;
    for (int y = 0; y < c->height; y++)
        for (int x = 0; x + 1 < c->width; x += 2) {
            const uint8_t *two = data + (size_t)y * c->line + (size_t)x * 2;
            uint8_t *rgb = c->pixels + (size_t)y * c->row_bytes + (size_t)x * 3;
            pixel_of(rgb, two[0], two[1], two[3]);
            pixel_of(rgb + 3, two[2], two[1], two[3]);
        }
    return 1;
}

/* Cameras put odd bytes between markers, at which TurboJPEG warns; a frame that ends early is none. */
static int from_jpeg(camera *c, const uint8_t *data, size_t bytes) {
    int width, height, sampling, colours;
    if (tjDecompressHeader3(c->jpeg, data, bytes, &width, &height, &sampling, &colours)) return 0;
    if (!make_room(c, width, height)) return 0;
    int row = (int)c->row_bytes;
    if (!tjDecompress2(c->jpeg, data, bytes, c->pixels, width, row, height, TJPF_RGB, 0)) return 1;
    return tjGetErrorCode(c->jpeg) == TJERR_WARNING && !strstr(tjGetErrorStr2(c->jpeg), "Premature");
}

/* The newest frame that the device has, decoded. 0: there is none, or it is damaged, or old: where every
 * buffer was full, frames after them were lost; -1: the device fails. */
static int take_frame(camera *c) {
    struct v4l2_buffer newest, b;
    int have = 0, decoded = 0;
    for (;;) {
        b = (struct v4l2_buffer){.type = V4L2_BUF_TYPE_VIDEO_CAPTURE, .memory = V4L2_MEMORY_MMAP};
        if (ask(c->device, VIDIOC_DQBUF, &b) < 0) {
            if (errno == EAGAIN || errno == EIO) break;
            say("%s: %s: %s", c->name, c->path, errno == ENODEV ? "it was unplugged" : strerror(errno));
            return -1;
        }
        if (have && !queue_buffer(c, newest.index)) return -1;
        newest = b, have++;
    }
    if (!have) return 0;
    const uint8_t *data = c->buffers[newest.index].data;
    if (have < c->buffer_count && !(newest.flags & V4L2_BUF_FLAG_ERROR))
        decoded = (c->format == V4L2_PIX_FMT_YUYV ? from_yuyv : from_jpeg)(c, data, newest.bytesused);
    return queue_buffer(c, newest.index) ? decoded : -1;
}

static int wait_for_frame(camera *c, double until) {
    for (double now = now_ms(); now < until; now = now_ms()) {
        struct pollfd wait = {.fd = c->device, .events = POLLIN};
        if (poll(&wait, 1, (int)(until - now) + 1) < 0 && errno != EINTR)
            return failed(c);
        int taken = take_frame(c);
        if (taken) return taken > 0;
        if (wait.revents & POLLERR) return say("%s: %s does not stream", c->name, c->path);
    }
    return say("%s: %s has given no frame in time (--silent)", c->name, c->path);
}

/* ---- files that stand in ---------------------------------------------------------------------------- */

static int is_jpeg(const char *name) {
    const char *end = strrchr(name, '.');
    return end && (!strcasecmp(end, ".jpg") || !strcasecmp(end, ".jpeg"));
}

/* The name after c->file, or the first one. NULL: the folder has none. */
static char *next_name(const camera *c, DIR *folder) {
    char *after = NULL, *first = NULL;
    for (struct dirent *entry; (entry = readdir(folder));) {
        const char *name = entry->d_name;
        char **best = c->file && strcmp(name, c->file) > 0 ? &after : &first;
        if (!is_jpeg(name) || (*best && strcmp(name, *best) >= 0)) continue;
        free(*best);
        *best = strdup(name);
    }
    if (!after) return first;
    free(first);
    return after;
}

static int read_file(camera *c, const char *path) {
    static uint8_t data[16 << 20];
    FILE *file = fopen(path, "rb");
    size_t bytes = file ? fread(data, 1, sizeof data, file) : 0;
    if (!file) return say("%s: %s: %s", c->name, path, strerror(errno));
    fclose(file);
    return from_jpeg(c, data, bytes) ||
           say("%s: %s is no whole JPEG: %s", c->name, path, tjGetErrorStr2(c->jpeg));
}

static int read_folder(camera *c, double until) {
    char path[4096];
    for (;; usleep(1000)) {
        DIR *folder = opendir(c->path);
        if (!folder && errno == ENOTDIR) return read_file(c, c->path);
        if (!folder) return failed(c);
        char *name = next_name(c, folder);
        closedir(folder);
        if (name) {
            free(c->file);
            c->file = name;
            snprintf(path, sizeof path, "%s/%s", c->path, name);
            return read_file(c, path);
        }
        if (now_ms() >= until) return say("%s: %s has given no frame in time (--silent)", c->name, c->path);
    }
}

/* ---- a camera ----------------------------------------------------------------------------------------- */

static int open_camera(camera *c, const options *o) {
    struct stat is;
    c->device = -1;
    c->jpeg = tjInitDecompress();
    if (!c->jpeg) return say("%s: out of memory", c->name);
    if (stat(c->path, &is))
        return say("%s: there is no %s, expected a device (v4l2-ctl --list-devices names them) or JPEG files",
                   c->name, c->path);
    if (!S_ISCHR(is.st_mode)) return 1;
    c->device = open(c->path, O_RDWR | O_NONBLOCK);
    if (c->device < 0)
        return say("%s: %s: %s%s", c->name, c->path, strerror(errno),
                   errno == EACCES ? ": the group video may" : "");
    return open_device(c, o);
}

static void close_camera(camera *c) {
    for (int i = 0; i < c->buffer_count; i++) munmap(c->buffers[i].data, c->buffers[i].bytes);
    if (c->device >= 0) close(c->device);
    if (c->jpeg) tjDestroy(c->jpeg);
    free(c->pixels);
    free(c->file);
}

static int see(camera *cameras, int count, const options *o, openpi_image *images) {
    for (int i = 0; i < count; i++) {
        camera *c = &cameras[i];
        double until = now_ms() + o->silent_ms;
        if (!(c->device < 0 ? read_folder(c, until) : wait_for_frame(c, until))) return 0;
        images[i] = (openpi_image)OPENPI_IMAGE_INIT;
        images[i].name = c->name, images[i].data = c->pixels, images[i].row_bytes = c->row_bytes;
        images[i].width = c->width, images[i].height = c->height;
    }
    return 1;
}

/* ---- the model ---------------------------------------------------------------------------------------- */

typedef struct model {
    openpi_engine *engine;
    openpi_session *session;
    openpi_policy *policy;
    openpi_request *request;
    openpi_policy_info info;
} model;

static int open_model(model *m, const options *o) {
    openpi_synthetic made = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options engine = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_policy_options policy = OPENPI_POLICY_OPTIONS_INIT;
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    const char *checkpoint = o->checkpoint;
    if (!strcmp(checkpoint, "tiny")) {
        if (openpi_synthetic_parse(checkpoint, &made, &error)) return say("%s", error.message);
        engine.synthetic = policy.synthetic = &made;
        checkpoint = NULL;
    }
    engine.device = o->device;
    policy.robot = o->robot;
    session.steps = o->steps;
    m->info = (openpi_policy_info)OPENPI_POLICY_INFO_INIT;
    if (openpi_policy_open(checkpoint, &policy, &m->policy, &error) ||
        openpi_policy_get_info(m->policy, &m->info, &error))
        return say("%s", error.message);
    session.horizon = m->info.horizon;
    if (openpi_engine_open(checkpoint, &engine, &m->engine, &error) ||
        openpi_session_create(m->engine, &session, &m->session, &error) ||
        openpi_request_create(m->policy, &m->request, &error))
        return say("%s", error.message);
    return 1;
}

static void close_model(model *m) {
    openpi_request_close(m->request);
    openpi_session_close(m->session);
    openpi_policy_close(m->policy);
    openpi_engine_close(m->engine);
}

/* One call; prints the pictures' sizes and the first action. */
static int act(model *m, camera *cameras, int count, const options *o) {
    static double actions[OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM];
    openpi_image images[CAMERAS];
    openpi_observation seen = OPENPI_OBSERVATION_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    if (!see(cameras, count, o, images)) return 0;
    double from = now_ms();
    seen.images = images, seen.image_count = count;
    seen.state = o->state, seen.state_length = o->states;
    seen.prompt = o->prompt;
    size_t capacity = sizeof actions / sizeof *actions;
    if (openpi_policy_infer(m->request, m->session, &seen, NULL, actions, capacity, NULL, &error))
        return say("%s", error.message);
    for (int i = 0; i < count; i++) printf("%s %dx%d, ", images[i].name, images[i].width, images[i].height);
    printf("%.1f ms:", now_ms() - from);
    for (int i = 0; i < m->info.action_dim; i++) printf(" %.9g", actions[i]);
    printf("\n");
    return 1;
}

/* ---- the words ---------------------------------------------------------------------------------------- */

static int number(const char *option, const char *text, int low, int high, int *to) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < low || value > high)
        return say("%s is %s, expected %d to %d", option, text, low, high);
    *to = (int)value;
    return 1;
}

static int read_state(options *o, const char *text) {
    char *end = (char *)text;
    for (o->states = 0; o->states < STATES; text = end + 1) {
        o->state[o->states++] = strtod(text, &end);
        if (end == text || (*end && *end != ',')) break;
        if (!*end) return 1;
    }
    return say("--state is %s, expected up to %d numbers with commas between them", text, STATES);
}

static int read_size(options *o, const char *text) {
    char rest;
    if (sscanf(text, "%dx%d%c", &o->width, &o->height, &rest) == 2 && o->width > 1 && o->height > 1) return 1;
    return say("--size is %s, expected such as 640x480", text);
}

static int read_format(options *o, const char *text) {
    o->format = !strcmp(text, "mjpeg") ? V4L2_PIX_FMT_MJPEG : V4L2_PIX_FMT_YUYV;
    if (!strcmp(text, "mjpeg") || !strcmp(text, "yuyv")) return 1;
    return say("--format is %s, expected mjpeg or yuyv", text);
}

static int read_option(options *o, const char *name, const char *value) {
    if (!strcmp(name, "--state")) return read_state(o, value);
    if (!strcmp(name, "--size")) return read_size(o, value);
    if (!strcmp(name, "--format")) return read_format(o, value);
    if (!strcmp(name, "--rate")) return number(name, value, 1, 1000, &o->rate);
    if (!strcmp(name, "--silent")) return number(name, value, 1, 60000, &o->silent_ms);
    if (!strcmp(name, "--calls")) return number(name, value, 1, 1000000, &o->calls);
    if (!strcmp(name, "--steps")) return number(name, value, 1, 100, &o->steps);
    if (!strcmp(name, "--prompt")) return o->prompt = value, 1;
    if (!strcmp(name, "--device")) return o->device = value, 1;
    return say("there is no option %s, --help lists them", name);
}

/* How many cameras; 0: a word is wrong, and was told. */
static int read_words(options *o, camera *cameras, int count, char **words) {
    int found = 0, i = 3;
    for (; i < count; i++) {
        char *equals = strchr(words[i], '=');
        if (!strncmp(words[i], "--", 2)) {
            if (i + 1 == count) return say("%s wants a value", words[i]);
            if (!read_option(o, words[i], words[i + 1])) return 0;
            i++;
        } else if (!equals || equals == words[i] || !equals[1]) {
            return say("%s, expected NAME=DEVICE", words[i]);
        } else if (found == CAMERAS) {
            return say("%s is one camera too many, expected up to %d", words[i], CAMERAS);
        } else {
            *equals = 0;
            cameras[found++] = (camera){.name = words[i], .path = equals + 1, .device = -1};
        }
    }
    if (!found) say("there is no camera, expected NAME=DEVICE");
    return found;
}

int main(int count, char **words) {
    options o = {.prompt = "pick up the fork", .states = 8, .width = 640, .height = 480, .rate = 30,
                 .silent_ms = 1000, .calls = 1, .format = V4L2_PIX_FMT_MJPEG};
    camera cameras[CAMERAS];
    model m = {0};
    if (count == 2 && !strcmp(words[1], "--help")) return fputs(help, stdout) < 0;
    if (count < 4) return fputs(help, stderr), 2;
    o.checkpoint = words[1], o.robot = words[2];
    int found = read_words(&o, cameras, count, words), ok = 1, opened = 0;
    if (!found) return 2;
    while (ok && opened < found) ok = open_camera(&cameras[opened++], &o);
    ok = ok && open_model(&m, &o);
    for (int i = 0; ok && i < o.calls; i++) ok = act(&m, cameras, found, &o);
    close_model(&m);
    for (int i = 0; i < opened; i++) close_camera(&cameras[i]);
    return !ok;
}
