"""A name that would be markup, script or a template if anything took it for more than a name."""

HOSTILE = (
    "<script>window.hacked = 1</script>\"'&</script><img src=x onerror='window.hacked = 2'>"
    "\n\u2028\u202e{{ 7 * 7 }} --><!-- javascript:window.hacked=3 " + "L" * 10_000
)
