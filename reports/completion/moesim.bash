# bash completion for moesim: the program itself knows what can follow (moesim complete).
_moesim() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]}" complete "$COMP_LINE" "$COMP_POINT" 2>/dev/null))
}
complete -o default -F _moesim moesim
