// The allocator's table of chunks in less memory. TensorFlow keeps 8 bytes of host memory for each 256
// of a pool (AllocationRegion in tsl's bfc_allocator.h), which all are 0xff until a chunk begins there:
// 430 MiB for a T4. Pieces of the new table become private mappings of one shared piece. A piece takes
// memory again once it is written.
#include "simulated_card.h"
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 2 << 20, MOST_TABLES = 32, CHUNK_BYTES = 256, ENTRY_BYTES = 8 };
static struct {
  char *at;
  size_t bytes;
} tables[MOST_TABLES]; // the latest long blocks of host memory; one may be a table
static unsigned table_count;

void note_table(char *at, size_t bytes) {
  if (bytes < 2 * PIECE)
    return;
  unsigned i = __atomic_fetch_add(&table_count, 1, __ATOMIC_SEQ_CST) % MOST_TABLES;
  tables[i].at = at;
  tables[i].bytes = bytes;
}

static int make_shared_piece(char **shared) {
  int file = memfd_create("chunk_table", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, PIECE))
    return -1;
  *shared = mmap(0, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (*shared == MAP_FAILED)
    return -1;
  memset(*shared, 0xff, PIECE);
  return file;
}

// Call when the first chunk of a pool was allocated, before other threads know the pool.
void share_table(uint64_t pool_bytes) {
  size_t bytes = (pool_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * ENTRY_BYTES;
  for (int i = 0; i < MOST_TABLES; i++) {
    if (tables[i].bytes != bytes)
      continue;
    char *shared = 0;
    int file = make_shared_piece(&shared);
    if (file < 0)
      return;
    char *first = (char *)(((uintptr_t)tables[i].at + 4095) & ~(uintptr_t)4095);
    char *end = tables[i].at + bytes;
    for (char *piece = first; piece + PIECE <= end; piece += PIECE)
      if (!memcmp(piece, shared, PIECE))
        mmap(piece, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0);
    munmap(shared, PIECE);
    close(file);
    tables[i].bytes = 0;
    return;
  }
}
