/* V4L2 devices for cameras.sh: what examples/cameras.c asks the kernel of /dev/null is answered here, by the
 * linker's --wrap. FAKE_CAMERA says how: mjpeg (the frames are the file FAKE_FRAME), yuyv (white, rows 64
 * bytes apart), silent, none, gone. Four frames come at once, cut short, then one at a time. */
#include <errno.h>
#include <linux/videodev2.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

enum { DEVICES = 64, BUFFERS = 4, SIZE = 1 << 20, GAP = 64 };

typedef struct fake {
    unsigned char *memory[BUFFERS];
    int queued[BUFFERS], count;  /* in the order in which they were queued                                */
    int width, height, given, paused;
} fake;

static fake fakes[DEVICES];

static int is(const char *what) {
    const char *asked = getenv("FAKE_CAMERA");
    return asked && !strcmp(asked, what);
}

static int fail(int error) {
    errno = error;
    return -1;
}

static unsigned fill(fake *f, unsigned char *to) {
    if (is("mjpeg")) {
        FILE *file = fopen(getenv("FAKE_FRAME"), "rb");
        unsigned bytes = file ? (unsigned)fread(to, 1, SIZE, file) : 0;
        if (file) fclose(file);
        return bytes;
    }
    for (int y = 0; y < f->height; y++, to += f->width * 2 + GAP) {
        memset(to, 128, (size_t)f->width * 2);
        for (int x = 0; x < f->width; x++) to[2 * x] = 235;
        memset(to + f->width * 2, 77, GAP);
    }
    return (unsigned)(f->height * (f->width * 2 + GAP));
}

static int set_format(fake *f, struct v4l2_pix_format *p) {
    p->pixelformat = is("yuyv") ? V4L2_PIX_FMT_YUYV : V4L2_PIX_FMT_MJPEG;
    p->width = 320, p->height = 240;
    p->bytesperline = is("yuyv") ? p->width * 2 + GAP : 0;
    f->width = (int)p->width, f->height = (int)p->height;
    return 0;
}

/* Four frames, then one at every second look. */
static int dequeue(fake *f, struct v4l2_buffer *b) {
    if (is("gone") && f->given == BUFFERS) return fail(ENODEV);
    if (is("silent") || !f->count || (f->given >= BUFFERS && (f->paused ^= 1))) return fail(EAGAIN);
    b->index = (unsigned)f->queued[0];
    memmove(f->queued, f->queued + 1, sizeof *f->queued * (size_t)--f->count);
    b->bytesused = fill(f, f->memory[b->index]);
    b->flags = 0;
    if (f->given++ < BUFFERS) b->bytesused /= 2;
    return 0;
}

static int answer(fake *f, unsigned long request, void *argument) {
    struct v4l2_capability *has = argument;
    struct v4l2_buffer *b = argument;
    switch (request) {
    case VIDIOC_QUERYCAP:
        if (is("none")) return fail(ENOTTY);
        has->capabilities = V4L2_CAP_VIDEO_CAPTURE | V4L2_CAP_STREAMING;
        return 0;
    case VIDIOC_S_FMT: return set_format(f, &((struct v4l2_format *)argument)->fmt.pix);
    case VIDIOC_S_PARM: return fail(ENOTTY);
    case VIDIOC_REQBUFS: ((struct v4l2_requestbuffers *)argument)->count = BUFFERS; return 0;
    case VIDIOC_QUERYBUF: b->length = SIZE, b->m.offset = b->index * SIZE; return 0;
    case VIDIOC_QBUF: f->queued[f->count++] = (int)b->index; return 0;
    case VIDIOC_DQBUF: return dequeue(f, b);
    case VIDIOC_STREAMON: return 0;
    default: return fail(ENOTTY);
    }
}

int __wrap_ioctl(int device, unsigned long request, ...);
int __wrap_ioctl(int device, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    return device < DEVICES ? answer(&fakes[device], request, argument) : fail(EBADF);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int device, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int device, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int device, off_t offset) {
    if (device < 0 || device >= DEVICES || bytes != SIZE)
        return __real_mmap(at, bytes, protection, flags, device, offset);
    void *memory = __real_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) fakes[device].memory[offset / SIZE] = memory;
    return memory;
}

int __real_poll(struct pollfd *list, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *list, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *list, nfds_t count, int timeout) {
    if (is("silent")) return __real_poll(NULL, 0, timeout);
    list->revents = POLLIN;
    return (int)count;
}
