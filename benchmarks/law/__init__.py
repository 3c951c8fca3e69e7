"""Whether any simple policy beats flowguard's law: in shipped scenarios, and in random loads.

- `cases`         what is simulated: the shipped scenarios in small, and six random loads
- `figures`       what is compared, which way is better, and what is too little to count
- `dominance`     the rule for the cases, and their page
- `random_loads`  loads by number
- `runs`          runs of random loads, and the file that keeps them
- `regret`        how far each policy stays behind the best one
- `search`        the search, and its page
"""
