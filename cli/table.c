/* Text tables. Cells are kept until the widths of all are known; a cell's width is its code points, not its
 * bytes. */
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { CELL = 160, COLUMNS_MAX = 48 };

struct table {
    const char *align;
    int columns, count, capacity;
    char **cells;
};

int text_columns(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

table *table_create(const char *align) {
    table *t = allocate(sizeof *t);
    *t = (table){align, (int)strlen(align), 0, 0, NULL};
    if (t->columns > COLUMNS_MAX) t->columns = COLUMNS_MAX;
    return t;
}

void table_cell(table *t, const char *format, ...) {
    char text[CELL];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (t->count == t->capacity) {
        int capacity = t->capacity ? t->capacity * 2 : 64;
        char **cells = allocate((size_t)capacity * sizeof *cells);
        if (t->count) memcpy(cells, t->cells, (size_t)t->count * sizeof *cells);
        free(t->cells);
        t->cells = cells;
        t->capacity = capacity;
    }
    t->cells[t->count] = allocate(strlen(text) + 1);
    strcpy(t->cells[t->count++], text);
}

void table_print(table *t, FILE *file, int indent) {
    int widths[COLUMNS_MAX] = {0}, spaces = 0, rows = t->count / t->columns;
    for (int i = 0; i < rows * t->columns; i++) {
        int wide = text_columns(t->cells[i]);
        if (wide > widths[i % t->columns]) widths[i % t->columns] = wide;
    }
    for (int i = 0; i < rows * t->columns; i++) {
        int c = i % t->columns, wide = text_columns(t->cells[i]), pad = widths[c] - wide;
        if (!c) spaces = indent;
        if (wide) { /* no spaces before what is empty to the line's end */
            fprintf(file, "%*s%s", spaces + (t->align[c] == 'r' ? pad : 0), "", t->cells[i]);
            spaces = t->align[c] == 'r' ? 0 : pad;
        } else {
            spaces += pad;
        }
        spaces += 2;
        if (c == t->columns - 1) fputc('\n', file);
    }
    for (int i = 0; i < t->count; i++) free(t->cells[i]);
    free(t->cells);
    free(t);
}
