/* Text tables: cells in, aligned columns out. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdio.h>

typedef struct table table;

/* One letter a column, l or r: how it is aligned. */
table *table_create(const char *align);
/* The next cell, row by row. */
void table_cell(table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints every whole row, `indent` spaces in, and frees the table. */
void table_print(table *table, FILE *file, int indent);

/* Columns that UTF-8 text takes: its code points. */
int text_columns(const char *text);

#endif
