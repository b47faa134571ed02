// Shorter waits of TensorFlow's allocator for memory. A request that is refused waits up to 10 s for
// other threads to free some (kMaxMillisToWait in tsl's bfc_allocator.cc). Kernels take no time here, so
// other threads free theirs soon or never. The wait is an exported function of TensorFlow that its own
// library calls through its table of addresses; the entry is replaced as soon as this library is loaded.
#include "simulated_card.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

// void *AllocatorRetry::AllocateRaw(std::function<void *(size_t, size_t, bool)>, int milliseconds,
//                                   size_t alignment, size_t bytes): the function comes by reference.
typedef void *Wait(void *self, void *request, int milliseconds, size_t alignment, size_t bytes);
static const char wait_name[] = "_ZN3tsl14AllocatorRetry11AllocateRawESt8functionIFPvmmbEEimm";
static Wait *wait_of_tensorflow;

enum { LONGEST_WAIT_MS = 1000, MOST_HALVES = 10 };
static uint64_t refused_bytes; // size of the latest refused request
static int refusals;           // number of refused requests
static int equal_refusals; // the latest of them, of the same size: XLA tries many algorithms for one op
API(simulated_card_refused_bytes)(void) { return (long)refused_bytes; }
API(simulated_card_refusals)(void) { return refusals; }

static int choose_wait(size_t bytes) {
  pthread_mutex_lock(&lock);
  int halves = bytes == refused_bytes ? equal_refusals : 0;
  pthread_mutex_unlock(&lock);
  return LONGEST_WAIT_MS >> (halves < MOST_HALVES ? halves : MOST_HALVES);
}

static void note_refusal(size_t bytes) {
  pthread_mutex_lock(&lock);
  equal_refusals = bytes == refused_bytes ? equal_refusals + 1 : 1;
  refused_bytes = bytes;
  refusals++;
  pthread_mutex_unlock(&lock);
}

static void *wait_shortly(void *self, void *request, int milliseconds, size_t alignment, size_t bytes) {
  int longest = choose_wait(bytes);
  int chosen = milliseconds < longest ? milliseconds : longest;
  void *memory = wait_of_tensorflow(self, request, chosen, alignment, bytes);
  if (bytes && !memory)
    note_refusal(bytes);
  return memory;
}

static void replace(void **entry, uint64_t place) {
  uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  void *page = (void *)((uintptr_t)entry & ~(page_bytes - 1));
  if (mprotect(page, page_bytes, PROT_READ | PROT_WRITE))
    return;
  wait_of_tensorflow = (Wait *)place;
  *entry = (void *)wait_shortly;
}

static int replace_in(struct dl_phdr_info *library, size_t size, void *unused) {
  if (!strstr(library->dlpi_name, "libtensorflow_framework"))
    return 0;
  const ElfW(Dyn) *dynamic = 0;
  for (int i = 0; i < library->dlpi_phnum; i++)
    if (library->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = (const void *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
  const ElfW(Sym) *symbols = 0;
  const char *names = 0;
  const ElfW(Rela) *calls = 0;
  uint64_t bytes = 0;
  for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
    const void *table = (const void *)dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB)
      symbols = table;
    else if (dynamic->d_tag == DT_STRTAB)
      names = table;
    else if (dynamic->d_tag == DT_JMPREL)
      calls = table;
    else if (dynamic->d_tag == DT_PLTRELSZ)
      bytes = dynamic->d_un.d_val;
  }
  for (uint64_t i = 0; symbols && names && calls && i < bytes / sizeof *calls; i++) {
    const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(calls[i].r_info)];
    int is_defined = symbol->st_shndx != SHN_UNDEF;
    if (is_defined && !strcmp(names + symbol->st_name, wait_name))
      replace((void **)(library->dlpi_addr + calls[i].r_offset), library->dlpi_addr + symbol->st_value);
  }
  return 1;
}

__attribute__((constructor)) static void shorten_waits(void) { dl_iterate_phdr(replace_in, 0); }
