"""The commands `flowguard storm`, `publish` and `subscribe`.

- `messages`    publishes or shows a few messages, by `one_client`
- `storm`       puts load on a broker
- `options`     options of storm
- `access`      users, certificates and layers from these options
- `storm_view`  progress and results of a storm in the terminal
- `kit`         `flowguard storm --kit`
- `kit_view`    progress and results of the kit in the terminal
- `kit_page`    the report of the kit as a page
- `results`     results as JSON
"""
