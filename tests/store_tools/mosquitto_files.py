"""Configurations of Mosquitto, in the shapes that people publish, and those that it cannot read.

`{p}`, `{q}` and `{r}` are free ports; the other names are files. In braces they are replaced.
"""

TLS = "certfile {cert}\nkeyfile {key}\n"
CLIENT_TLS = f"cafile {{ca}}\n{TLS}require_certificate true\n"
DEFAULT_PORT = (
    *("nothing", "comments", "no limit above nothing", "limit above nothing"),
    *("limit above a listener", "log facility above nothing", "bridge alone"),
    *("interface of the default", "certificate above all", "interface above nothing"),
)
"""The files with which Mosquitto opens port 1883."""

EQUAL = {
    "nothing": "",
    "comments": "# Place your local configuration in /etc/mosquitto/conf.d/\n#\n",
    "debian": (
        "pid_file {folder}/m.pid\n\npersistence false\npersistence_location {folder}/\n\n"
        "log_dest file {folder}/mosquitto.log\n\ninclude_dir {folder}/conf.d\n"
    ),
    "debian with listener": (
        "pid_file {folder}/m.pid\nlistener {p}\nallow_anonymous false\npassword_file {users}\n"
        "include_dir {folder}/empty.d\n"
    ),
    "no limit above nothing": "max_connections -1\n",
    "no limit above a listener": "max_connections -1\nprotocol mqtt\nlistener {p}\n",
    "limit above a listener": "max_connections 100\nlistener {p}\nallow_anonymous true\n",
    "limit above nothing": "max_connections 100\n",
    "log facility": "log_facility 5\nlistener {p} 127.0.0.1\nallow_anonymous true\n",
    "log facility above nothing": "log_facility 5\nlog_dest stderr\nlog_timestamp true\n",
    "home": "listener {p}\nallow_anonymous true\n",
    "home, Windows": "listener {p}\r\nallow_anonymous true\r\n\r\n",
    "home, all IPv4": "listener {p} 0.0.0.0\nallow_anonymous true\n",
    "both by hand": "listener {p} 0.0.0.0\nlistener {p} ::\nallow_anonymous true\n",
    "loopback by hand": "listener {p} 127.0.0.1\nlistener {p} ::1\nallow_anonymous true\n",
    "IPv6": "listener {p} ::\nallow_anonymous true\n",
    "IPv4 of both": "listener {p}\nsocket_domain ipv4\nallow_anonymous true\n",
    "IPv6 of both": "listener {p}\nsocket_domain ipv6\nallow_anonymous true\n",
    "closed by default": "listener {p}\n",
    "port": "port {p}\nallow_anonymous true\n",
    "port and listener": "port {p}\nlistener {q} 127.0.0.1\npassword_file {users}\n",
    "address": "bind_address 127.0.0.1\nport {p}\nallow_anonymous true\n",
    "port below a listener": "listener {p} 127.0.0.1\nport {q}\nallow_anonymous 1\n",
    "users": "allow_anonymous false\npassword_file {users}\nlistener {p}\n",
    "users, anonymous": "allow_anonymous true\npassword_file {users}\nlistener {p}\n",
    "users, silent": "listener {p}\npassword_file {users}\n",
    "no users": "listener {p}\nallow_anonymous false\n",
    "users and rules": "listener {p}\npassword_file {users}\nacl_file {acl}\n",
    "comments behind values": (
        "listener {p} # MQTT\nallow_anonymous true # for now\nmax_connections 50 # enough\n"
        "persistence false # no\nmax_inflight_messages 20 # default\n"
    ),
    "comment behind an address": "listener {p} 127.0.0.1 # here\nallow_anonymous 1\n",
    "indented": "listener {p}\n  allow_anonymous true\n  max_connections   30\n",
    "Latin-1 in a comment": "# caf\udce9\nlistener {p}\nallow_anonymous true\n",
    "line separator in a comment": "# \u2028listener {q}\nlistener {p}\nallow_anonymous true\n",
    "twice": "allow_anonymous true\nallow_anonymous false\nlistener {p}\npassword_file {users}\n",
    "TLS": f"listener {{p}}\n{TLS}allow_anonymous true\n",
    "TLS and plain": f"listener {{p}} 127.0.0.1\nlistener {{q}}\n{TLS}password_file {{users}}\n",
    "TLS with chain": "listener {p}\ncertfile {leaf}\nkeyfile {leafkey}\ncafile {middle}\n",
    "TLS above all": f"port {{p}}\ncafile {{ca}}\n{TLS}allow_anonymous true\n",
    "TLS 1.2": f"listener {{p}}\n{TLS}tls_version tlsv1.2\nciphers HIGH\nallow_anonymous true\n",
    "TLS 1.3": f"listener {{p}}\n{TLS}tls_version tlsv1.3\npassword_file {{users}}\n",
    "certificates": f"listener {{p}}\n{CLIENT_TLS}use_identity_as_username true\n",
    "certificates, 1": (
        f"listener {{p}}\ncafile {{ca}}\n{TLS}require_certificate 1\nallow_anonymous true\n"
    ),
    "certificates, comment": (
        f"listener {{p}}\ncafile {{ca}}\n{TLS}require_certificate true    # mTLS\n"
        "use_identity_as_username true # CN\n"
    ),
    "certificates, none needed": (
        f"listener {{p}}\ncafile {{ca}}\n{TLS}require_certificate false\nallow_anonymous true\n"
    ),
    "certificates, revoked": (
        f"listener {{p}}\n{CLIENT_TLS}crlfile {{crl}}\nuse_identity_as_username true\n"
    ),
    "certificates, rules": (
        f"listener {{p}}\n{CLIENT_TLS}use_identity_as_username true\nacl_file {{acl}}\n"
    ),
    "certificates and users": (
        f"listener {{p}}\n{CLIENT_TLS}use_identity_as_username true\npassword_file {{users}}\n"
        "listener {q}\n"
    ),
    "each its own, one": (
        "per_listener_settings true\nlistener {p}\nallow_anonymous false\n"
        f"password_file {{users}}\nacl_file {{acl}}\n{TLS}"
    ),
    "each its own, the same": (
        "per_listener_settings true\nlistener {p}\npassword_file {users}\n"
        "listener {q} 127.0.0.1\npassword_file {users}\n"
    ),
    "each its own, certificates": (
        "per_listener_settings true\nautosave_interval 0\nqueue_qos0_messages false\n"
        "password_file {users}\nallow_anonymous false\nport {p}\nbind_address 127.0.0.1\n"
        f"listener {{q}} 0.0.0.0\nprotocol mqtt\nuse_identity_as_username true\n{CLIENT_TLS}"
    ),
    "WebSocket": "listener {p}\nlistener {q}\nprotocol websockets\nallow_anonymous true\n",
    "WebSocket, users": "listener {p}\nlistener {q}\nprotocol websockets\npassword_file {users}\n",
    "WebSocket, TLS": (
        f"listener {{p}}\nlistener {{q}}\nprotocol websockets\n{TLS}allow_anonymous 1\n"
    ),
    "bridge alone": (
        "connection up\naddress 192.0.2.1:1883\ntopic # out 1\nremote_username u\n"
        "remote_password p\nkeepalive_interval 60\nstart_type automatic\nbridge_insecure false\n"
    ),
    "bridge and listener": (
        "connection up\naddress 192.0.2.1\ntopic # both 0 in/ out/\ncleansession true\n"
        "listener {p}\nallow_anonymous true\n"
    ),
    "owner of all": (
        "persistence true\npersistence_location {folder}/\npersistent_client_expiration 2w\n"
        "log_type error\nlog_type warning\nlog_type subscribe\nconnection_messages true\n"
        "max_queued_messages 0\nmax_keepalive 300\nset_tcp_nodelay true\nlistener {p}\n"
        "allow_anonymous true\n"
    ),
    "include with listeners": "listener {p}\ninclude_dir {folder}/more.d\n",
}
"""The result admits the same clients at the same addresses, and the exit code is 0."""

NARROWER = {
    "interface": "listener {q} 127.0.0.1\nlistener {p}\nbind_interface lo\nallow_anonymous true\n",
    "mount point": "listener {q}\nlistener {p}\nmount_point devices/\nallow_anonymous true\n",
    "prefixes": "clientid_prefixes dev-\nlistener {p}\nallow_anonymous true\n",
    "names as ids": "listener {p}\nuse_username_as_clientid true\nallow_anonymous true\n",
    "empty client ids": "allow_zero_length_clientid false\nlistener {p}\nallow_anonymous true\n",
    "certificate and password": f"listener {{p}}\n{CLIENT_TLS}password_file {{users}}\n",
    "certificate and no user": f"listener {{p}}\n{CLIENT_TLS}allow_anonymous false\n",
    "names without certificates": f"listener {{p}}\n{TLS}use_identity_as_username true\n",
    "subjects": f"listener {{p}}\n{CLIENT_TLS}use_subject_as_username true\n",
    "no authority": f"listener {{p}}\n{TLS}require_certificate true\nallow_anonymous true\n",
    "certificates without TLS": "listener {p}\nrequire_certificate true\nallow_anonymous true\n",
    "half of TLS": "listener {p}\ncertfile {cert}\nallow_anonymous true\n",
    "certificate above all": "require_certificate true\nlistener {p}\nallow_anonymous true\n",
    "pre-shared keys": "psk_file {psk}\nlistener {p}\npsk_hint hint\nallow_anonymous true\n",
    "each its own": (
        "per_listener_settings true\nlistener {p} 127.0.0.1\nallow_anonymous true\n"
        "listener {q}\npassword_file {users}\nlistener {r}\nacl_file {acl}\n"
    ),
    "each its own, above": "per_listener_settings true\npassword_file {users}\nport {p}\n",
    "WebSocket by name": "listener {p}\nlistener {q} localhost\nprotocol websockets\n",
    "below included listeners": (
        f"listener {{r}}\nallow_anonymous true\ninclude_dir {{folder}}/conf.d\n{TLS}"
    ),
    "interface above nothing": "bind_interface lo\nallow_anonymous true\n",
    "interface of the default": "bind_interface lo\nlistener {p}\nallow_anonymous true\n",
}
"""A listener is left out, and the exit code is 1."""

UNREADABLE = {
    "byte order mark": "\ufefflistener {p}\nallow_anonymous true\n",
    "byte order mark, comment": "\ufeff# MQTT\nlistener {p}\nallow_anonymous true\n",
    "tab": "listener\t{p}\nallow_anonymous true\n",
    "tab behind a value": "listener {p}\nallow_anonymous true\t# for now\n",
    "indented comment": "listener {p}\n  # for now\nallow_anonymous true\n",
    "yes": "listener {p}\nallow_anonymous yes\n",
    "True": f"listener {{p}}\n{CLIENT_TLS}allow_anonymous True\n",
    "unknown": "listener {p}\nallow_anonymous true\nfrobnicate 7\n",
    "comment behind a file": "listener {p}\npassword_file {users} # users\n",
    "twice": "listener {p}\npassword_file {users}\npassword_file {users}\n",
    "listener twice": "max_connections 10\nport {p}\nlistener {p}\n",
    "above each its own": "allow_anonymous true\nper_listener_settings true\nlistener {p}\n",
    "two versions of TLS": f"listener {{p}}\n{TLS}tls_version tlsv1.3\ntls_version tlsv1.2\n",
    "no address": "listener {q}\nlistener {p} 127.0.0.1\nsocket_domain ipv6\nallow_anonymous 1\n",
    "no folder": "listener {p}\nallow_anonymous true\ninclude_dir {folder}/none.d\n",
    "bridge without a name": "address 192.0.2.1\nlistener {p}\nallow_anonymous true\n",
    "old TLS": f"listener {{p}}\n{TLS}tls_version tlsv1\nallow_anonymous true\n",
    "comment behind TLS": f"listener {{p}}\n{TLS}tls_version tlsv1.2 # new\nallow_anonymous true\n",
    "no value": "listener {p}\nallow_anonymous\n",
    "protocol": "listener {p}\nprotocol http\nallow_anonymous true\n",
    "plugin": "plugin {folder}/none.so\nlistener {p}\nallow_anonymous true\n",
    "mount point above": "mount_point a/\nlistener {p}\nallow_anonymous true\n",
    "option of a plugin": "auth_opt_x y\nlistener {p}\nallow_anonymous true\n",
    "NUL": "listener {p}\nallow_anonymous true\0 \n",
}
"""Mosquitto opens no listener that lets a client in, and nothing is written."""

LINES = (
    *("listener {p}", "listener {q} 127.0.0.1", "listener {p} 0.0.0.0 # all", "listener {q} ::"),
    *("listener {r} ::1", "port {r}", "bind_address 127.0.0.1", "socket_domain ipv4"),
    *("socket_domain ipv6", "protocol mqtt", "per_listener_settings true", "max_connections 5"),
    *("per_listener_settings 0", "max_connections -1", "max_connections 0 # none", "max_qos 1"),
    *("max_qos 2", "max_topic_alias 3", "allow_anonymous true", "allow_anonymous false"),
    *("allow_anonymous 1 # yes", "allow_anonymous 0", "password_file {users}", "acl_file {acl}"),
    *("allow_zero_length_clientid true", "allow_zero_length_clientid 0", "auto_id_prefix a"),
    *("certfile {cert}\nkeyfile {key}", "certfile {cert}", "cafile {ca}", "crlfile {crl}"),
    *("require_certificate true", "require_certificate 0", "use_identity_as_username 1"),
    *("use_identity_as_username false", "use_username_as_clientid true", "tls_version tlsv1.2"),
    *("use_username_as_clientid 0", "mount_point a/", "clientid_prefixes a", "psk_file {psk}"),
    *("include_dir {folder}/conf.d", "include_dir {folder}/more.d", "http_dir {folder}"),
    *("include_dir {folder}/empty.d", "ciphers HIGH", "max_keepalive 100", "connection_messages 1"),
)
"""Lines of which configurations are made at random."""
