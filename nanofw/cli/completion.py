"""`nanofw completion bash | zsh | fish`: complete commands in that shell.

Prints a script:

  bash: nanofw completion bash >> ~/.bashrc
  zsh:  nanofw completion zsh >> ~/.zshrc      (after compinit)
  fish: nanofw completion fish > ~/.config/fish/completions/nanofw.fish

Commands and options are completed, and kinds, names of plugins, presets, files,
keys and values: also those of the local files that a configuration names.
"""

from __future__ import annotations

import argparse

from nanofw.cli import ExitCode
from nanofw.cli.stdout import claim, stdout

BASH = r"""
_nanofw() {
    local word i kept breaks=${COMP_WORDBREAKS//[^=:]/}
    local -a words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do  # bash splits words at = and :
        word=${COMP_WORDS[i]}
        if ((i > 1)) && [[ $word == [=:]* || ${words[${#words[@]} - 1]} == *[=:] ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
    done
    word=${words[${#words[@]} - 1]}
    kept=${word%"${word##*[${breaks:- }]}"}
    COMPREPLY=()
    while IFS= read -r word; do
        [[ $word == *[=./] ]] || word+=" "
        COMPREPLY+=("${word#"$kept"}")
    done < <("${words[0]}" completion words -- "${words[@]:1}" 2> /dev/null)
}
complete -o nospace -F _nanofw nanofw
"""
ZSH = r"""
_nanofw() {
    local -a found
    found=(${(f)"$(${words[1]} completion words -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)"})
    compadd -S '' -- ${(M)found:#*[=./]}
    compadd -- ${found:#*[=./]}
}
compdef _nanofw nanofw
"""  # noqa: E501
FISH = r"""
function __nanofw_words
    set -l words (commandline -opc)
    $words[1] completion words -- $words[2..-1] (commandline -ct) 2> /dev/null
end
complete -c nanofw -f -a '(__nanofw_words)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def main(arguments: list[str]) -> int:
    """Entry of the command. `completion words -- WORD ...` is what the scripts call."""
    if arguments[:2] == ["words", "--"]:
        from nanofw.cli.completion_words import candidates

        claim()  # plugins may run
        print("\n".join(candidates(arguments[2:])), file=stdout())
        return ExitCode.OK
    parser = argparse.ArgumentParser(
        prog="nanofw completion", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("shell", choices=SCRIPTS, metavar="SHELL", help="bash, zsh or fish")
    options = parser.parse_args(arguments)
    print(SCRIPTS[options.shell].strip(), file=stdout())
    return ExitCode.OK
