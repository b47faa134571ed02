// Algorithms of a convolution: workspace and time, by the expressions in PHANTOM_CONVOLUTIONS_<card>.
//
// The text has one assignment in each line, "name<TAB>expression". A line without an expression begins an
// algorithm. Its assignments end with "microseconds"; "offered" and "bytes" are among them. The expressions
// are those of simulate/kernels/gpu/cudnn_algorithms.toml, with values of the card.
#include "convolutions.h"
#include "../runtime/phantom.h"

#include <ctype.h>
#include <math.h>

enum { MOST_NAMES = 128 };
typedef struct {
  const char *name;
  int length;
  double value;
} Name;
typedef struct {
  Name names[MOST_NAMES];
  int count;
} Scope;

static double comparison(const char **p, const Scope *s);

static void space(const char **p) {
  while (**p == ' ')
    ++*p;
}
static int accept(const char **p, const char *text) {
  space(p);
  size_t n = strlen(text);
  if (strncmp(*p, text, n))
    return 0;
  *p += n;
  return 1;
}
static double call(const char *name, int length, double a, double b) {
  if (!strncmp(name, "max", length))
    return a > b ? a : b;
  if (!strncmp(name, "min", length))
    return a < b ? a : b;
  if (!strncmp(name, "pad", length))
    return ceil(a / b) * b;
  if (!strncmp(name, "up", length))
    return ceil(a / b);
  double power = 1; // power2
  while (power < a)
    power *= 2;
  return power;
}
static double primary(const char **p, const Scope *s) {
  if (accept(p, "(")) {
    double value = comparison(p, s);
    accept(p, ")");
    return value;
  }
  if (accept(p, "-"))
    return -primary(p, s);
  if (isdigit((unsigned char)**p)) {
    char *end;
    double value = strtod(*p, &end);
    *p = end;
    return value;
  }
  const char *name = *p;
  while (isalnum((unsigned char)**p) || **p == '_')
    ++*p;
  int length = (int)(*p - name);
  if (accept(p, "(")) {
    double a = comparison(p, s), b = accept(p, ",") ? comparison(p, s) : 0;
    accept(p, ")");
    return call(name, length, a, b);
  }
  for (int i = s->count - 1; i >= 0; i--)
    if (s->names[i].length == length && !strncmp(s->names[i].name, name, length))
      return s->names[i].value;
  say(1, "convolutions: no name %.*s", length, name);
  if (!length && **p)
    ++*p;
  return 0;
}
static double term(const char **p, const Scope *s) {
  double value = primary(p, s);
  for (;;)
    if (accept(p, "*"))
      value *= primary(p, s);
    else if (accept(p, "//"))
      value = floor(value / primary(p, s));
    else if (accept(p, "/"))
      value /= primary(p, s);
    else if (accept(p, "%"))
      value = fmod(value, primary(p, s));
    else
      return value;
}
static double sum(const char **p, const Scope *s) {
  double value = term(p, s);
  for (;;)
    if (accept(p, "+"))
      value += term(p, s);
    else if (accept(p, "-"))
      value -= term(p, s);
    else
      return value;
}
static double comparison(const char **p, const Scope *s) {
  double value = sum(p, s);
  if (accept(p, "=="))
    return value == sum(p, s);
  if (accept(p, "!="))
    return value != sum(p, s);
  if (accept(p, "<="))
    return value <= sum(p, s);
  if (accept(p, ">="))
    return value >= sum(p, s);
  if (accept(p, "<"))
    return value < sum(p, s);
  if (accept(p, ">"))
    return value > sum(p, s);
  return value;
}

static void let(Scope *s, const char *name, int length, double value) {
  if (s->count < MOST_NAMES)
    s->names[s->count++] = (Name){name, length, value};
}
static void let_all(Scope *s, const char *names, const int64_t *values) {
  for (; *names; names++, values++)
    let(s, names, 1, (double)*values);
}
static void describe(Scope *s, const Convolution *c) {
  // cudnnDataType_t: 0 float, 1 double, 2 half, 9 bfloat16
  static const char *passes[] = {"forward", "input_gradient", "filter_gradient"};
  int deep = c->rank == 5;
  int64_t one = 1;
  let_all(s, "NC", c->image);
  let_all(s, deep ? "DHW" : "HW", c->image + 2);
  let_all(s, "K", c->kernel);
  let_all(s, deep ? "TRS" : "RS", c->kernel + 2);
  let_all(s, deep ? "OPQ" : "PQ", c->result + 2);
  if (!deep)
    for (const char *name = "DTO"; *name; name++)
      let(s, name, 1, one);
  for (int i = 0; i < 3; i++)
    let(s, passes[i], (int)strlen(passes[i]), c->pass == i + 1);
  let(s, "groups", 6, (double)(c->image[1] / (c->kernel[1] ? c->kernel[1] : 1)));
  let(s, "stride", 6, (double)c->stride);
  let(s, "dilation", 8, (double)c->dilation);
  let(s, "deep", 4, deep);
  let(s, "last", 4, c->channels_last);
  let(s, "b", 1, c->type == 1 ? 8 : c->type == 0 ? 4 : 2);
  let(s, "single", 6, c->type == 0);
  let(s, "half", 4, c->type == 2);
  let(s, "bfloat16", 8, c->type == 9);
}
static double value_of(const Scope *s, const char *name) {
  return primary(&name, s);
}

int convolution_choices(const Convolution *c, int card, Choice *choices) {
  char variable[32];
  snprintf(variable, sizeof variable, "PHANTOM_CONVOLUTIONS_%d", card);
  const char *p = getenv(variable);
  int found = 0, begun = 0, common = 0;
  Scope s = {.count = 0};
  if (!p || !c->pass)
    return 0;
  describe(&s, c);
  while (*p && found < MOST_CHOICES) {
    const char *name = p;
    while (*p && *p != '\t' && *p != '\n')
      p++;
    int length = (int)(p - name);
    if (*p == '\t') {
      p++;
      let(&s, name, length, comparison(&p, &s));
      if (begun && !strncmp(name, "microseconds", length) && value_of(&s, "offered") > 0)
        choices[found++] = (Choice){(int64_t)value_of(&s, "bytes"), value_of(&s, "microseconds")};
    } else if (!begun) {
      begun = 1;
      common = s.count;
    } else
      s.count = common;
    while (*p && *p != '\n')
      p++;
    if (*p)
      p++;
  }
  return found;
}
