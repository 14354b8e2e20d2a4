/* See pages.h. The assembler places the files in the program's read-only data. */
#include "pages.h"

#include <stdint.h>
#include <string.h>

#define FILE_OF(name, file)                                                  \
    __asm__(".pushsection .rodata\n"                                         \
            ".globl openpi_page_" #name "\n"                                 \
            ".hidden openpi_page_" #name "\n"                                \
            "openpi_page_" #name ":\n"                                       \
            ".incbin \"" OPENPI_PAGES "/" file "\"\n"                        \
            ".globl openpi_page_" #name "_end\n"                             \
            ".hidden openpi_page_" #name "_end\n"                            \
            "openpi_page_" #name "_end:\n"                                   \
            ".byte 0\n"                                                      \
            ".popsection\n");                                                \
    extern const char openpi_page_##name[] __attribute__((visibility("hidden"))); \
    extern const char openpi_page_##name##_end[] __attribute__((visibility("hidden")))

FILE_OF(html, "page.html");
FILE_OF(css, "page.css");
FILE_OF(js, "page.js");
FILE_OF(svg, "icon.svg");

static const struct { const char *path, *type, *begin, *end; } files[] = {
    {"/", "text/html; charset=utf-8", openpi_page_html, openpi_page_html_end},
    {"/page.css", "text/css; charset=utf-8", openpi_page_css, openpi_page_css_end},
    {"/page.js", "text/javascript; charset=utf-8", openpi_page_js, openpi_page_js_end},
    {"/icon.svg", "image/svg+xml", openpi_page_svg, openpi_page_svg_end},
};

int page_find(const char *path, page_file *out) {
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (strcmp(path, files[i].path)) continue;
        size_t bytes = (size_t)((uintptr_t)files[i].end - (uintptr_t)files[i].begin);
        *out = (page_file){files[i].type, files[i].begin, bytes};
        return 1;
    }
    return 0;
}
