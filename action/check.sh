#!/bin/bash
# Trace TARGET as it is and as it was on the base branch, and comment on the pull request.
# The exit code is that of the first check that fails.
set -uo pipefail
mkdir -p memory
read -ra options <<<"${OPTIONS:-} --inter-op-threads 1 --quiet" # runs with one thread repeat
status=0
analyze trace "$TARGET" --out memory/after ${LIMIT:+--max-peak "$LIMIT"} "${options[@]}" \
  --markdown memory/peak.md || status=$?
if [ -n "${GITHUB_BASE_REF:-}" ] && git worktree add --quiet memory/base "origin/$GITHUB_BASE_REF" &&
  (cd memory/base && analyze trace "$TARGET" --out ../before "${options[@]}"); then
  analyze diff memory/before memory/after --fail-on-increase "$INCREASE" --quiet \
    --markdown memory/diff.md || status=$((status ? status : $?))
fi

mark='<!-- tf-memory-analyzer -->' # finds the comment of the last run
{
  cat memory/peak.md memory/diff.md 2>/dev/null || [ -s memory/peak.md ] ||
    echo "### The memory of \`$TARGET\` was not measured (exit code $status); the job's log has the reason."
  printf '\n%s\n' "$mark"
} >memory/comment.md
cat memory/comment.md >>"$GITHUB_STEP_SUMMARY"
if [ -n "${GH_TOKEN:-}" ] && [ -n "${PULL_REQUEST:-}" ]; then
  comments="repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments"
  old=$(gh api --paginate "$comments" --jq ".[] | select(.body | contains(\"$mark\")) | .id" | head -n 1)
  # A pull request from a fork has no right to comment; the summary has the same text.
  place=${old:+repos/$GITHUB_REPOSITORY/issues/comments/$old}
  gh api --method "$([ -n "$old" ] && echo PATCH || echo POST)" "${place:-$comments}" \
    --field body=@memory/comment.md >/dev/null || true
fi
exit "$status"
