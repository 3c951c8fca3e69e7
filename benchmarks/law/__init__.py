"""Whether any simple policy beats flowguard's law: all of them, in every case, judged by one rule.

- `cases`      what is simulated: the shipped scenarios in small, and the worst loads of a search
- `figures`    what is compared, which way is better, and what is too little to count
- `dominance`  the rule, and the page
- `search`     random loads, and the worst of them
"""
