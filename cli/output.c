/* Outputs: a temporary beside each target, renamed at the end; a thread that takes them back when a signal
 * comes.
 *
 * Note: signals are not handled but waited for. They are blocked in every thread, and one thread
 * sleeps in sigwait; so taking back is ordinary code. `lock` is held while the list changes, never while data
 * is written: a pipe that nobody reads must not keep Ctrl-C from working. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "output.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUTPUTS_MAX = 8, SENTENCE = 1000 };
static const char template[] = ".openpi-XXXXXX";

typedef struct output {
    const char *path;   /* as typed                                                              */
    char *target;       /* the end of symbolic links                                             */
    char *beside;       /* the temporary; NULL: written straight                                 */
    char *fill;         /* a folder's: the folder to fill in it, which the verb makes            */
    FILE *file;         /* NULL: a folder, or closed                                             */
    int folder, inside; /* inside: the temporary folder stands in the target, which was there    */
    const char *const *replaces; /* inside: patterns of names that the new ones take the place of; or NULL */
} output;

static output list[OUTPUTS_MAX];
static int list_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- names ---------------------------------------------------------------------------------------- */

static char *copy(const char *text) { return strcpy(allocate(strlen(text) + 1), text); }

/* "a/b" and "c" -> "a/c"; "b" -> "c": a name beside `path`. */
static char *beside(const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    char *text = allocate(folder + strlen(name) + 1);
    memcpy(text, path, folder);
    strcpy(text + folder, name);
    return text;
}

static char *inside(const char *folder, const char *name) {
    char *text = allocate(strlen(folder) + strlen(name) + 2);
    sprintf(text, "%s/%s", folder, name);
    return text;
}

static output *find(const char *path) {
    for (int i = 0; i < list_count; i++)
        if (!strcmp(list[i].path, path)) return &list[i];
    return NULL;
}

static int refuse(const verb *verb, const char *path, int why) {
    return input_error(verb, "%s: cannot be written: %s", path, strerror(why));
}

/* ---- taking back ---------------------------------------------------------------------------------- */

/* Empties a folder and removes it. Threads that still write may put files into it meanwhile: then once more.
 * Nothing is allocated under the lock: allocate may end the command, and that takes back too. */
static void remove_tree(const char *path) {
    char inner[PATH_MAX];
    int tries = 100;
    do {
        DIR *folder = opendir(path);
        const struct dirent *entry;
        while (folder && (entry = readdir(folder))) {
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
            if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner) continue;
            if (unlink(inner)) remove_tree(inner);
        }
        if (folder) closedir(folder);
    } while (rmdir(path) && (errno == ENOTEMPTY || errno == EEXIST) && --tries);
}

static void take_back(const output *o) {
    if (o->beside && o->folder) remove_tree(o->beside);
    else if (o->beside) unlink(o->beside);
}

static void forget(output *o) {
    if (o->file) fclose(o->file);
    free(o->fill);
    free(o->beside);
    free(o->target);
}

static void take_back_all(void) {
    for (int i = 0; i < list_count; i++) take_back(&list[i]);
}

static void forget_all(void) {
    for (int i = 0; i < list_count; i++) forget(&list[i]);
    list_count = 0;
}

void output_drop(const char *path) {
    pthread_mutex_lock(&lock);
    output *o = find(path);
    take_back(o);
    forget(o);
    *o = list[--list_count];
    pthread_mutex_unlock(&lock);
}

void outputs_discard(void) {
    pthread_mutex_lock(&lock);
    take_back_all();
    forget_all();
    pthread_mutex_unlock(&lock);
}

/* ---- signals -------------------------------------------------------------------------------------- */

static sigset_t awaited;

/* The lock is kept to the end: nothing is renamed any more. stdio might be held by a thread that writes. */
static void *wait_for_signal(void *argument) {
    const verb *verb = argument;
    char sentence[80];
    int which;
    if (sigwait(&awaited, &which)) return NULL;
    pthread_mutex_lock(&lock);
    take_back_all();
    int length = snprintf(sentence, sizeof sentence, "%sopenpi %s: interrupted\n",
                          isatty(STDERR_FILENO) ? "\r\033[K" : "", verb->name);
    if (write(STDERR_FILENO, sentence, (size_t)length) < 0) _exit(END_INTERRUPTED);
    _exit(END_INTERRUPTED);
}

/* A signal that was ignored when the command started (nohup, a job in the background) stays ignored. */
void outputs_watch(const verb *verb) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction was;
    pthread_t thread;
    sigemptyset(&awaited);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (!sigaction(signals[i], NULL, &was) && was.sa_handler != SIG_IGN) sigaddset(&awaited, signals[i]);
    signal(SIGPIPE, SIG_IGN); /* a write that fails with EPIPE or EFBIG instead                */
    signal(SIGXFSZ, SIG_IGN);
    if (verb->own_signals) return;
    pthread_sigmask(SIG_BLOCK, &awaited, NULL);
    atexit(outputs_discard);
    if (pthread_create(&thread, NULL, wait_for_signal, (void *)(uintptr_t)verb)) {
        pthread_sigmask(SIG_UNBLOCK, &awaited, NULL);
        return;
    }
    pthread_detach(thread);
}

/* ---- opening -------------------------------------------------------------------------------------- */

/* Standard output for this output alone: what is printed from now on goes to standard error. */
static FILE *take_stdout(void) {
    int fd = dup(STDOUT_FILENO);
    if (fd < 0) return NULL;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0) close(STDOUT_FILENO);
    return fdopen(fd, "wb");
}

/* An empty temporary that will have the mode of the file it replaces, or of a new one. Returns errno. */
static int open_beside(output *o, mode_t mode) {
    o->beside = beside(o->target, template);
    pthread_mutex_lock(&lock);
    int fd = mkstemp(o->beside), why = errno;
    if (fd >= 0) list[list_count++] = *o;
    pthread_mutex_unlock(&lock);
    if (fd < 0) {
        free(o->beside);
        return why;
    }
    output *kept = &list[list_count - 1];
    kept->file = fchmod(fd, mode) ? NULL : fdopen(fd, "wb");
    if (kept->file) return 0;
    why = errno;
    close(fd);
    return why;
}

static int open_straight(output *o) {
    o->file = strcmp(o->path, "-") ? fopen(o->path, "wb") : take_stdout();
    if (!o->file) return errno;
    pthread_mutex_lock(&lock);
    list[list_count++] = *o;
    pthread_mutex_unlock(&lock);
    return 0;
}

static mode_t default_mode(mode_t all) {
    mode_t mask = umask(0);
    umask(mask);
    return all & ~mask;
}

static int is_new(const verb *verb, const char *name, const char *path) {
    if (!*path) return usage_error(verb, "%s is empty, expected a path", name);
    if (find(path) && !strcmp(path, "-"))
        return usage_error(
            verb, "two results are to go to standard output, %s is the second: expected one at most", name);
    if (find(path)) return usage_error(verb, "%s is '%s', which another result is written to", name, path);
    return list_count == OUTPUTS_MAX ? usage_error(verb, "%s is one result too many", name) : END_FINE;
}

/* The path that symbolic links lead to, of a file that may not be there yet. NULL: errno says why. */
static char *resolve(const char *path, int known) {
    if (known) return realpath(path, NULL);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *above = beside(path, "."), *folder = realpath(above, NULL), *whole = NULL;
    free(above);
    if (!folder) return NULL;
    if (*name)
        whole = inside(strcmp(folder, "/") ? folder : "", name);
    else
        errno = EISDIR;
    free(folder);
    return whole;
}

int output_open(const verb *verb, const char *name, const char *path) {
    output o = {.path = path};
    struct stat there;
    int end = is_new(verb, name, path), why;
    if (end != END_FINE) return end;
    const int standard = !strcmp(path, "-"), known = !standard && !stat(path, &there);
    if (!known && !standard && errno != ENOENT) return refuse(verb, path, errno);
    if (standard || (known && !S_ISREG(there.st_mode))) {
        why = known && S_ISDIR(there.st_mode) ? EISDIR : open_straight(&o);
        return why ? refuse(verb, path, why) : END_FINE;
    }
    if (known && access(path, W_OK)) return refuse(verb, path, errno);
    o.target = resolve(path, known);
    if (!o.target) return refuse(verb, path, errno);
    for (int i = 0; i < list_count; i++)
        if (list[i].target && !strcmp(list[i].target, o.target)) {
            free(o.target);
            return usage_error(verb, "%s is '%s', which another result is written to", name, path);
        }
    why = open_beside(&o, known ? there.st_mode & 07777 : default_mode(0666));
    if (!why) return END_FINE;
    if (!find(path)) free(o.target);
    return refuse(verb, path, why);
}

static int matches(const char *name, const char *const *patterns) {
    for (; patterns && *patterns; patterns++)
        if (!fnmatch(*patterns, name, 0)) return 1;
    return 0;
}

/* The first name in the folder that is among the patterns (`among` 1) or is not (0), "" where there is none.
 * NULL: the folder cannot be read, errno says why. */
static const char *first_name(const char *path, const char *const *patterns, int among,
                              char name[NAME_MAX + 1]) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    if (!folder) return NULL;
    *name = 0;
    while (!*name && (entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
            matches(entry->d_name, patterns) == among)
            strcpy(name, entry->d_name);
    closedir(folder);
    return name;
}

static int has_option(const verb *verb, const char *name) {
    for (const option_row *row = verb->options; row->name; row++)
        if (!strcmp(row->name, name)) return 1;
    return 0;
}

/* A folder that is there may be filled. */
static int may_fill(const verb *verb, const char *path, const char *const *replaces) {
    char name[NAME_MAX + 1];
    if (!first_name(path, replaces, 0, name))
        return input_error(verb, "%s: cannot be read: %s", path, strerror(errno));
    if (!*name) return END_FINE;
    if (replaces)
        return input_error(verb,
                           "%s: holds \"%s\", which openpi %s does not write: --force does not replace it",
                           path, name, verb->name);
    return input_error(verb, "%s: holds \"%s\", expected a new or empty folder%s", path, name,
                       has_option(verb, "force") ? ", or --force" : "");
}

/* A folder that is there stays the same folder: it may be a mount point or where the user stands.
 *
 * Note: the verb fills a folder inside the temporary one. Where a signal has removed that, the verb, which
 * may still run for a moment, cannot make it again. */
int output_open_folder(const verb *verb, const char *name, const char *path, const char *const *replaces) {
    output o = {.path = path, .folder = 1, .replaces = replaces};
    struct stat there;
    int end = is_new(verb, name, path);
    if (end != END_FINE) return end;
    if (!strcmp(path, "-"))
        return usage_error(verb, "%s is '-', expected a folder: it holds several files", name);
    o.inside = !stat(path, &there);
    if (!o.inside && errno != ENOENT) return refuse(verb, path, errno);
    if (o.inside && !S_ISDIR(there.st_mode))
        return input_error(verb, "%s: is a file, expected a new or empty folder", path);
    if (o.inside) end = may_fill(verb, path, replaces);
    if (end != END_FINE) return end;
    o.target = copy(path);
    for (size_t n = strlen(o.target); n > 1 && o.target[n - 1] == '/'; n--) o.target[n - 1] = 0;
    o.beside = o.inside ? inside(o.target, template) : beside(o.target, template);
    o.fill = inside(o.beside, "new");
    pthread_mutex_lock(&lock);
    int why = mkdtemp(o.beside) ? 0 : errno;
    memcpy(o.fill, o.beside, strlen(o.beside));            /* as mkdtemp has called it */
    if (!why) list[list_count++] = o;
    pthread_mutex_unlock(&lock);
    if (!why) return END_FINE;
    free(o.fill);
    free(o.beside);
    free(o.target);
    return input_error(verb, "%s: the folder cannot be made: %s", path, strerror(why));
}

FILE *output_file(const char *path) { return find(path)->file; }

const char *output_folder(const char *path) { return find(path)->fill; }

int output_is_regular(const char *path) { return find(path) && find(path)->beside && !find(path)->folder; }

/* ---- finishing ------------------------------------------------------------------------------------ */

/* stdio remembers that writing failed, but not why: one byte more fails for the same reason. */
static int why_writing_failed(FILE *file) { return write(fileno(file), "", 1) < 0 ? errno : EIO; }

/* Everything on its way to the disk; some disks say only then that they are full. Returns errno. */
static int close_file(output *o) {
    if (!o->file) return 0;
    FILE *file = o->file;
    const int standard = !strcmp(o->path, "-");
    int why = 0;
    if (fflush(file))
        why = errno;
    else if (ferror(file))
        why = why_writing_failed(file);
    else if (o->beside && fsync(fileno(file)) && errno != EINVAL && errno != EROFS)
        why = errno;
    o->file = NULL;
    if (fclose(file) && !why) why = errno;
    return standard && why == EPIPE ? 0 : why;
}

/* Standard output, flushed. A reader that has left, as head(1) does, has what it wanted. Returns errno. */
static int finish_stdout(void) {
    int why = fflush(stdout) ? errno : ferror(stdout) ? why_writing_failed(stdout) : 0;
    return why == EPIPE ? 0 : why;
}

/* A target that cannot be replaced, such as a file mounted by itself, is written over. Returns errno. */
static int write_over(const char *from, const char *to) {
    char block[1 << 16];
    size_t got;
    FILE *in = fopen(from, "rb"), *out = in ? fopen(to, "wb") : NULL;
    int why = out ? 0 : errno;
    while (!why && (got = fread(block, 1, sizeof block, in)) > 0)
        if (fwrite(block, 1, got, out) != got) why = errno;
    if (in) fclose(in);
    if (out && fclose(out) && !why) why = errno;
    return why;
}

/* Removes what the folder holds of such names. Returns errno. */
static int remove_old(const char *folder, const char *const *names) {
    char name[NAME_MAX + 1], path[PATH_MAX];
    while (first_name(folder, names, 1, name) && *name) {
        if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return ENAMETOOLONG;
        if (!unlink(path)) continue;
        remove_tree(path);
        if (!access(path, F_OK)) return ENOTEMPTY;
    }
    return 0;
}

/* Moves what a folder holds to another one and removes it. Returns errno. */
static int move_all(const char *from, const char *to) {
    char name[NAME_MAX + 1], old[PATH_MAX], new[PATH_MAX];
    while (first_name(from, NULL, 0, name) && *name) {
        if (snprintf(old, sizeof old, "%s/%s", from, name) >= (int)sizeof old) return ENAMETOOLONG;
        if (snprintf(new, sizeof new, "%s/%s", to, name) >= (int)sizeof new) return ENAMETOOLONG;
        if (rename(old, new)) return errno;
    }
    return rmdir(from) ? errno : 0;
}

static int put_folder_in_place(const output *o) {
    int why = o->replaces ? remove_old(o->target, o->replaces) : 0;
    if (!why) why = o->inside ? move_all(o->fill, o->target) : rename(o->fill, o->target) ? errno : 0;
    return why ? why : rmdir(o->beside) ? errno : 0;
}

static int put_in_place(const output *o) {
    if (!o->beside) return 0;
    if (o->folder) return put_folder_in_place(o);
    if (!rename(o->beside, o->target)) return 0;
    if (errno != EBUSY) return errno;
    int why = write_over(o->beside, o->target);
    return why ? why : unlink(o->beside) ? errno : 0;
}

int outputs_finish(const verb *verb) {
    int why = 0, i;
    for (i = 0; i < list_count && !why; i++) why = close_file(&list[i]);
    if (why) return refuse(verb, list[i - 1].path, why);
    why = finish_stdout();
    if (why) return input_error(verb, "the result cannot be written: %s", strerror(why));
    pthread_mutex_lock(&lock);
    for (i = 0; i < list_count && !why; i++) why = put_in_place(&list[i]);
    const char *path = why ? list[i - 1].path : NULL;
    if (!why) forget_all();
    pthread_mutex_unlock(&lock);
    return why ? refuse(verb, path, why) : END_FINE;
}

void outputs_rename_in(char *sentence, size_t bytes) {
    char text[SENTENCE];
    for (int i = 0; i < list_count; i++) {
        char *at = list[i].folder ? strstr(sentence, list[i].fill) : NULL;
        if (!at || strlen(sentence) >= sizeof text) continue;
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sentence), sentence, list[i].target,
                 at + strlen(list[i].fill));
        snprintf(sentence, bytes, "%s", text);
    }
}
