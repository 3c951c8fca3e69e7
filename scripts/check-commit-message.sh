#!/usr/bin/env bash
# Fails unless the first line of the file $1 is a commit subject as CONTRIBUTING.md describes it.
set -euo pipefail
IFS= read -r subject <"$1" || true
case $subject in Merge\ * | Revert\ * | fixup!\ * | squash!\ *) exit 0 ;; esac
if [ "${#subject}" -gt 72 ]; then
    echo "The subject has ${#subject} characters, at most 72. Move figures and reasons into the body." >&2
    exit 1
fi
if [[ ! $subject =~ ^[a-z][a-z0-9_./-]*:\ [a-z].*[^.]$ ]]; then
    echo 'The subject has another form than "area: imperative", such as "tls: bound what a handshake holds".' >&2
    exit 1
fi
