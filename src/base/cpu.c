/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine is: the CPU level the OS lets us use (D26), and how many cores. Nothing runs at load time. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

static const char *const isa_names[RAPTI_ISA_COUNT] = {"scalar", "avx2", "avx512", "avx512bf16", "neon", "neon_bf16"};

const char *rapti_isa_name(int isa) { return isa >= 0 && isa < RAPTI_ISA_COUNT ? isa_names[isa] : "?"; }

int rapti_isa_find(const char *name, size_t n) {
  for (int i = 0; i < RAPTI_ISA_COUNT; i++)
    if (strlen(isa_names[i]) == n && memcmp(isa_names[i], name, n) == 0) return i;
  return -1;
}

bool rapti_isa_covers(int have, int need) {
  if (have < 0 || have >= RAPTI_ISA_COUNT || need < 0 || need >= RAPTI_ISA_COUNT) return false;
  if (need == RAPTI_ISA_SCALAR) return true;
  return (have >= RAPTI_ISA_NEON) == (need >= RAPTI_ISA_NEON) && have >= need;
}

static bool all_set(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

rapti_isa rapti_isa_from_x86(uint32_t l1_ecx, uint32_t l7_ebx, uint32_t l7_1_eax, uint64_t xcr0) {
  const uint32_t fma_osxsave_avx_f16c = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29, avx2 = 1u << 5;
  const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, bf16 = 1u << 5;
  const uint64_t xmm_ymm = 6, opmask_zmm = 0xe0;   /* register state that the OS saves */
  if (!all_set(l1_ecx, fma_osxsave_avx_f16c) || !all_set(l7_ebx, avx2) || !all_set(xcr0, xmm_ymm))
    return RAPTI_ISA_SCALAR;
  if (!all_set(l7_ebx, f_dq_bw_vl) || !all_set(xcr0, opmask_zmm)) return RAPTI_ISA_AVX2;
  return all_set(l7_1_eax, bf16) ? RAPTI_ISA_AVX512BF16 : RAPTI_ISA_AVX512;
}

#if defined(__x86_64__)
rapti_isa rapti_isa_detect(void) {
  uint32_t a, b, c, d, l1_ecx, l7_ebx, l7_1_eax = 0, low = 0, high = 0;
  if (!__get_cpuid(1, &a, &b, &l1_ecx, &d)) return RAPTI_ISA_SCALAR;
  if (!__get_cpuid_count(7, 0, &a, &l7_ebx, &c, &d)) return RAPTI_ISA_SCALAR;
  if (a >= 1) __get_cpuid_count(7, 1, &l7_1_eax, &b, &c, &d);   /* a: highest subleaf */
  if (l1_ecx >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return rapti_isa_from_x86(l1_ecx, l7_ebx, l7_1_eax, (uint64_t)high << 32 | low);
}
#elif defined(__aarch64__)
rapti_isa rapti_isa_detect(void) {
#if defined(__linux__)
  if (getauxval(AT_HWCAP2) >> 14 & 1) return RAPTI_ISA_NEON_BF16;   /* HWCAP2_BF16 */
#endif
  return RAPTI_ISA_NEON;
}
#else
rapti_isa rapti_isa_detect(void) { return RAPTI_ISA_SCALAR; }
#endif

/* ---- Cores ---- */

static uint32_t affinity_cores(void) {
  for (size_t bits = 1024; bits <= 1u << 18; bits *= 4) {
    cpu_set_t *set = CPU_ALLOC(bits);
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(bits);
    const int rc = sched_getaffinity(0, bytes, set);
    const int count = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
    const bool too_small = rc != 0 && errno == EINVAL;
    CPU_FREE(set);
    if (count > 0) return (uint32_t)count;
    if (!too_small) break;
  }
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (uint32_t)n : 1;
}

/* The start of a small text file; false where it cannot be read. */
static bool read_text(const char *path, char *buf, size_t n) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t got = read(fd, buf, n - 1);
  close(fd);
  if (got <= 0) return false;
  buf[got] = '\0';
  return true;
}

/* Cores that "QUOTA PERIOD" grants, rounded up; 0 = no limit ("max", -1 or unreadable). */
static uint32_t quota_cores(const char *text) {
  char *end;
  const long long quota = strtoll(text, &end, 10);
  if (end == text || quota <= 0) return 0;
  const long long period = strtoll(end, NULL, 10);
  if (period <= 0) return 0;
  const long long cores = quota / period + (quota % period != 0);
  return cores < UINT32_MAX ? (uint32_t)cores : 0;
}

/* The older hierarchy, as a container sees its own group. */
static uint32_t cgroup1_cores(void) {
  char quota[64], period[32];
  if (!read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, 32)) return 0;
  if (!read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period)) return 0;
  strcat(quota, period);                       /* "QUOTA\nPERIOD\n" */
  return quota_cores(quota);
}

/* The tightest limit of this process's group and its ancestors (unified hierarchy). */
static uint32_t cgroup_cores(void) {
  char groups[4096], path[4096 + 64], text[64];
  const char root[] = "/sys/fs/cgroup", leaf[] = "/cpu.max";
  uint32_t best = 0;
  if (!read_text("/proc/self/cgroup", groups, sizeof groups)) return 0;
  const char *own = strstr(groups, "0::/");
  if (!own) return 0;
  own += 3;
  size_t n = strcspn(own, "\n");
  memcpy(path, root, sizeof root - 1);
  for (;;) {
    memcpy(path + sizeof root - 1, own, n);
    memcpy(path + sizeof root - 1 + n, leaf, sizeof leaf);
    if (read_text(path, text, sizeof text)) {
      const uint32_t cores = quota_cores(text);
      if (cores && (!best || cores < best)) best = cores;
    }
    if (n == 0) return best;
    do n--;
    while (n > 0 && own[n] != '/');
  }
}

static uint32_t smaller_limit(uint32_t a, uint32_t b) { return !a ? b : !b || a < b ? a : b; }

uint32_t rapti_usable_cores(void) {
  return smaller_limit(affinity_cores(), smaller_limit(cgroup_cores(), cgroup1_cores()));
}
