/* What the server tells its operator, on stderr. */
#ifndef SERVE_LOG_H
#define SERVE_LOG_H

/* One line, "openpi serve: …". From any thread. */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
