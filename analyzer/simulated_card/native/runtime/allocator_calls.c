// Two functions of TensorFlow's allocator (tsl's bfc_allocator.cc) with additions. They are exported,
// and TensorFlow's own library calls them through tables of addresses: for the linker, and of virtual
// functions. Their entries are replaced as soon as this library is loaded.
#include "simulated_card.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

// ---- shorter waits: a request that is refused waits up to 10 s for other threads to free memory
// (kMaxMillisToWait). Kernels take no time here, so other threads free theirs soon or never.
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

// ---- new memory, of which nothing is known, and the bytes that live tensors requested
// void *BFCAllocator::AllocateRaw(size_t, size_t, const AllocationAttributes &)
// void BFCAllocator::DeallocateRaw(void *)
// size_t BFCAllocator::RequestedSize(const void *)
typedef void *Allocate(void *self, size_t alignment, size_t bytes, const void *attributes);
typedef void Release(void *self, void *memory);
typedef size_t Measure(const void *self, const void *memory);
static Allocate *allocate_of_tensorflow;
static Release *release_of_tensorflow;
static Measure *measure_of_tensorflow;
static struct {
  uint64_t now, peak;
} requested[MOST_CARDS];

// Whether the allocator's functions were found: with only one of two, the sum would be wrong.
static int counts_requests(void) {
  return allocate_of_tensorflow && release_of_tensorflow && measure_of_tensorflow;
}

// The highest bytes requested on a card since the last call; -1 if they are not counted.
API(simulated_card_requested_peak)(int card) {
  if (!counts_requests())
    return -1;
  uint64_t now = __atomic_load_n(&requested[card].now, __ATOMIC_SEQ_CST);
  return (long)__atomic_exchange_n(&requested[card].peak, now, __ATOMIC_SEQ_CST);
}

static int card_of(const void *memory) {
  pthread_mutex_lock(&lock);
  Block *block = find(memory);
  int card = block ? block->card : -1;
  uint64_t pool_bytes = block && !block->is_used ? block->size : 0;
  if (block)
    block->is_used = 1;
  pthread_mutex_unlock(&lock);
  if (pool_bytes)
    share_table(pool_bytes);
  return card;
}

static void *allocate_unknown(void *self, size_t alignment, size_t bytes, const void *attributes) {
  char *memory = allocate_of_tensorflow(self, alignment, bytes, attributes);
  int card = memory ? card_of(memory) : -1;
  if (card < 0)
    return memory;
  forget_tensor(memory, bytes);
  if (!counts_requests())
    return memory;
  uint64_t now = __atomic_add_fetch(&requested[card].now, bytes, __ATOMIC_SEQ_CST);
  uint64_t peak = __atomic_load_n(&requested[card].peak, __ATOMIC_SEQ_CST);
  while (now > peak && !__atomic_compare_exchange_n(&requested[card].peak, &peak, now, 0,
                                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    ;
  return memory;
}

static void release_counted(void *self, void *memory) {
  int card = memory ? card_of(memory) : -1;
  if (card >= 0 && counts_requests())
    __atomic_sub_fetch(&requested[card].now, measure_of_tensorflow(self, memory), __ATOMIC_SEQ_CST);
  release_of_tensorflow(self, memory);
}

// ---- void *operator new(size_t), which also makes the table of chunks
typedef void *Make(size_t bytes);
static Make *make_of_tensorflow;

static void *make_noted(size_t bytes) {
  void *memory = make_of_tensorflow(bytes);
  note_table(memory, bytes);
  return memory;
}

// ---- replaced entries; one without a function of ours is only read
static const struct {
  const char *name;
  void *ours, **theirs;
} functions[] = {
    {wait_name, wait_shortly, (void **)&wait_of_tensorflow},
    {"_ZN3tsl12BFCAllocator11AllocateRawEmmRKNS_20AllocationAttributesE", allocate_unknown,
     (void **)&allocate_of_tensorflow},
    {"_ZN3tsl12BFCAllocator13DeallocateRawEPv", release_counted, (void **)&release_of_tensorflow},
    {"_ZNK3tsl12BFCAllocator13RequestedSizeEPKv", 0, (void **)&measure_of_tensorflow},
    {"_Znwm", make_noted, (void **)&make_of_tensorflow},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };
typedef struct {
  uint64_t base;
  const ElfW(Sym) * symbols;
  const char *names;
} Library;

static void replace(void **entry, void *theirs, int k) {
  if (!functions[k].ours) {
    *functions[k].theirs = theirs;
    return;
  }
  uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  void *page = (void *)((uintptr_t)entry & ~(page_bytes - 1));
  if (mprotect(page, page_bytes, PROT_READ | PROT_WRITE))
    return;
  *functions[k].theirs = theirs;
  *entry = functions[k].ours;
}

static void replace_listed(const Library *in, const ElfW(Rela) * entries, uint64_t bytes) {
  for (uint64_t i = 0; entries && i < bytes / sizeof *entries; i++) {
    const ElfW(Sym) *symbol = &in->symbols[ELF64_R_SYM(entries[i].r_info)];
    if (!ELF64_R_SYM(entries[i].r_info))
      continue;
    for (int k = 0; k < FUNCTIONS; k++) {
      if (strcmp(in->names + symbol->st_name, functions[k].name))
        continue;
      void **entry = (void **)(in->base + entries[i].r_offset);
      // A function of another library was called, so that the linker has set its entry.
      int is_own = symbol->st_shndx != SHN_UNDEF;
      replace(entry, is_own ? (void *)(in->base + symbol->st_value) : *entry, k);
    }
  }
}

static int replace_in(struct dl_phdr_info *library, size_t size, void *unused) {
  if (!strstr(library->dlpi_name, "libtensorflow_framework"))
    return 0;
  const ElfW(Dyn) *dynamic = 0;
  for (int i = 0; i < library->dlpi_phnum; i++)
    if (library->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = (const void *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
  Library in = {library->dlpi_addr};
  const ElfW(Rela) *calls = 0, *others = 0;
  uint64_t call_bytes = 0, other_bytes = 0;
  for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
    const void *table = (const void *)dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB)
      in.symbols = table;
    else if (dynamic->d_tag == DT_STRTAB)
      in.names = table;
    else if (dynamic->d_tag == DT_JMPREL)
      calls = table;
    else if (dynamic->d_tag == DT_PLTRELSZ)
      call_bytes = dynamic->d_un.d_val;
    else if (dynamic->d_tag == DT_RELA)
      others = table;
    else if (dynamic->d_tag == DT_RELASZ)
      other_bytes = dynamic->d_un.d_val;
  }
  if (in.symbols && in.names) {
    replace_listed(&in, calls, call_bytes);
    replace_listed(&in, others, other_bytes);
  }
  return 1;
}

__attribute__((constructor)) static void replace_functions(void) { dl_iterate_phdr(replace_in, 0); }
