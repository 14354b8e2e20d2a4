/* What the files of this folder share on the host side: the vendor's families, ranks and tensor maps. */
#ifndef BACKEND_GPU_CUDA_VENDOR_H
#define BACKEND_GPU_CUDA_VENDOR_H

#include "backend/gpu/cuda/maps.h"
#include "backend/gpu/family.h"

extern const gpu_vendor gpu_vendor_cuda;
/* A family each, with its image where the build has the CUDA compiler. Written by cmake/cuda.cmake. */
extern const gpu_module cuda_modules[];
/* cards.c */
extern const gpu_card cuda_cards[];
/* The card that the driver calls so, else the one that stands for the chip; NULL: neither is known. */
const gpu_card *cuda_card_of(const char *title, int major, int minor);

/* Ranks of products: what the heuristic takes first where several families can run one. */
enum {
    RANK_MADE_FOR_IT,                      /* velocity_rows, linear_short: kernels for this one product     */
    RANK_MEDIUM_HOPPER,                    /* 17 to 64 rows                                                 */
    RANK_SKINNY_HOPPER,                    /* few rows                                                      */
    RANK_FEW_MMA,
    RANK_SKINNY_MMA,
    RANK_GEMM_HOPPER,                      /* many rows                                                     */
    RANK_GEMM_MMA,
    RANK_TOO_MANY_ROWS,                    /* kernels for few rows, where tiles for many are already full   */
    RANK_ROWS,                             /* few rows of any type                                          */
    RANK_SIMT,                             /* anything; also what only one family runs                      */
};

/* Of attention over a cache: keys whole in large tiles, in small ones, split over a cluster, split over
 * blocks, anything. */
enum {
    RANK_CACHE_WGMMA_128,
    RANK_CACHE_WGMMA,
    RANK_CACHE_WHOLE,
    RANK_CACHE_CLUSTER,
    RANK_CACHE_SPLIT,
    RANK_CACHE_SIMT
};
enum { RANK_IMAGE_WGMMA, RANK_IMAGE_MMA, RANK_IMAGE_SIMT };
enum { RANK_ROOF_HOPPER, RANK_ROOF_ANY };

enum {
    FEW_ROWS = 64,                         /* most that a kernel for few rows takes                         */
    GATED_ROWS = 48, /* from here on a gated product fills Hopper's tiles of 64 rows: the
                                              kernels for few rows lose                                     */
    PORTABLE_ROWS = 32,                    /* with more gemm_mma's tiles of 64 rows are quicker             */
    KEY_TILE = 64,                         /* keys of attention over a cache                                */
};

/* Of a kernel for few rows: `rank`, or RANK_TOO_MANY_ROWS. */
int cuda_rank_few(const gpu_device *device, const gpu_task *task, int rank);

/* 1 where weights are read as they are, with no scales. */
static inline int cuda_plain_weights(const gpu_linear *p) {
    return p->weights.type == GPU_WEIGHT_F32 || p->weights.type == GPU_WEIGHT_BF16;
}
/* 1 where tensor cores can multiply: bf16, whole 16 bytes a row. */
static inline int cuda_tensor_legal(const gpu_linear *p) {
    return p->x_type == GPU_X_BF16 && p->weights.type == GPU_WEIGHT_BF16 && p->ldx % 8 == 0;
}
/* 1 where rows and weights become 8-bit integers. */
static inline int cuda_int8_product(const gpu_linear *p) { return p->weights.type == GPU_WEIGHT_INT8X8; }
/* 1 where rows of x do not follow each other: a norm that goes first puts them in order. */
static inline int cuda_scattered(const gpu_linear *p) { return p->from.map || p->from.group; }

/* Shared memory of attention_mma and attention_cluster: groups of 16 rows, two tiles of keys. */
static inline size_t cuda_cache_shared(int row_groups) {
    size_t rows = 16 * (size_t)row_groups;
    return (rows + 2 * KEY_TILE) * 512 + rows * (128 + 32);
}
/* Keys of a split, whole tiles each. */
static inline int cuda_span(const gpu_cache_attention *p, int splits) {
    return ceil_div(ceil_div(p->capacity, KEY_TILE), splits) * KEY_TILE;
}
/* Splits that would give every multiprocessor two blocks of 16 queries. */
static inline int cuda_splits(const gpu_device *device, const gpu_cache_attention *p) {
    return 2 * gpu_multiprocessors(device) / ceil_div(p->part_rows, 16);
}
/* 1 where tensor cores can attend over a cache. */
int cuda_cache_legal(const gpu_device *device, const gpu_cache_attention *p);

/* A map of rank 2 to 4 over bf16, `swizzled` by 128 bytes, or (-1) over fp32 words. */
void cuda_make_map(gpu_issue *issue, gpu_tensor_map *map, int swizzled, unsigned rank, const void *base,
                   const uint64_t *dims, const uint64_t *strides, const unsigned *box);
/* Sizes of an atom of a format of packed weights, by weight_tile.h; 0 where it has no row there. */
typedef struct cuda_atom {
    int columns;
    size_t bytes;
} cuda_atom;
cuda_atom cuda_atom_of(int format);
/* Of a packed matrix, whose atoms are [column/8][k/64][256 words]: boxes of so many groups of 8 columns, 64 k
 * deep. */
void cuda_map_weights(gpu_issue *issue, gpu_tensor_map *map, gpu_weights weights, unsigned groups);
/* The same with boxes of `blocks` times 64 k. */
void cuda_map_weight_blocks(gpu_issue *issue, gpu_tensor_map *map, gpu_weights weights, unsigned blocks,
                            unsigned groups);
/* Of q, k and v of so many rows of images, as [rows][q, k, v][heads][head_dim]: boxes of so many dims of a
 * head and rows; swizzled where the dims are 128 bytes. */
void cuda_map_image_heads(gpu_issue *issue, gpu_tensor_map *map, const gpu_image_attention *p, int rows,
                          unsigned box_dims, unsigned box_rows);
/* The argument of wgmma kernels of attention over a cache: *p with maps of q, in boxes of q_rows rows, and of
 * keys and values, in boxes of `keys` places; by 64 dims. */
void cuda_make_cache_maps(gpu_issue *issue, gpu_wgmma_attention *w, const gpu_cache_attention *p,
                          unsigned q_rows, unsigned keys);
/* Most clusters (of 1: blocks) of the launch that the device holds at once; 0 where the driver cannot tell.
 * 0 or the driver's error. */
int cuda_most_clusters(const gpu_driver *driver, const gpu_launch *launch, int *clusters);
/* The same on cards without clusters: most blocks of the kernel that a multiprocessor holds at once, 0 where
 * the driver cannot tell. 0 or the driver's error. */
int cuda_most_blocks(gpu_device *device, int family, int kernel, int threads, size_t shared, int *blocks);
/* For a family whose blocks wait for each other, when a device opens. Allocates `bytes` as the family's state
 * if the whole grid of that kernel fits on the device at once; otherwise leaves *state unchanged. Returns 0
 * or the driver's error. */
int cuda_open_resident(gpu_device *device, int family, int kernel, const gpu_grid *grid, size_t bytes,
                       void **state);
/* gpu_family.close for it. */
void cuda_close_resident(gpu_device *device, void *state);

/* cublaslt.c */
openpi_status cuda_library_product(device *device, int m, int n, int k, double *us, char *name,
                                   openpi_error *error);

#endif
