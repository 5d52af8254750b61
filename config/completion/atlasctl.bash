# Bash completion of atlasctl.
_atlasctl() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      --socket) ((++i)) ;;
      -*) ;;
      *) verb=${COMP_WORDS[i]}; break ;;
    esac
  done
  if [[ $before == --socket ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
  fi
  local words='--socket --json --help --version'
  case $verb in
    '') words+=' status models plugins plan swap chat complete reload drain stats' ;;
    status) words+=' --wait --timeout' ;;
    plan) words+=' --records --set'; [[ $word == -* ]] || { mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; } ;;
    swap) words+=' --set --dry-run' ;;
    drain) words+=' --timeout' ;;
    chat) words+=' --system --model --max-tokens --temperature --top-p --seed' ;;
    complete) words+=' --model --max-tokens --temperature --top-p --seed' ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _atlasctl atlasctl
