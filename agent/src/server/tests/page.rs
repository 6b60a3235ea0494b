//! `docs/differences.md` names the bounds of the server, all of them and as they are.

use berth_core::server::{PATH_MAX, Places};

use super::super::{
    authenticate, authorize,
    certificates::CHAIN_MAX,
    client_ca::JUDGES,
    connection::{HEAD_MAX, HEAD_MAX_H2, STREAMS_MAX, TIMES},
    dispatch::BODY_MAX,
    endpoints::node_logs::{opened::NAMES_MAX, services::JOURNAL_LIMIT},
    heads, held,
    lanes::{JOURNALS, THREADS, WHOLE, WHOLE_READ_ONLY},
    lasting,
    log_places::{FOLLOWED, NOT_FOLLOWED},
    parts::{OF_USER, WAITING_OF_USER},
    review::{ALL_WITHIN, OF_KNOWN, OF_STRANGERS, RATE},
    streaming::{
        idle::GONE_AFTER,
        places,
        run::{self, OUTPUT_MAX},
        sockets,
    },
};

const PAGE: &str = include_str!("../../../../docs/differences.md");

/// What is bounded, and how: the first two cells of the rows.
fn rows() -> Vec<(&'static str, &'static str)> {
    let section =
        PAGE.split("\n## ").find(|section| section.starts_with("What the node's server answers otherwise"));
    let rows = section.unwrap().lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.map(|row| {
        let mut cells = row.split(" | ");
        (cells.next().unwrap(), cells.next().unwrap())
    });
    // Behind the heading and the line below it.
    cells.skip(2).collect()
}

fn of_connections() -> [(&'static str, String); 6] {
    let Places { all, not_admitted, .. } = Places::SERVER;
    let read_only = Places::READ_ONLY.all;
    let [handshake, first, idle, taken] =
        [TIMES.handshake, TIMES.first, TIMES.idle, TIMES.taken].map(|time| time.as_secs());
    let hours = TIMES.streamed.as_secs() / 3600;
    let rate = held::BYTES_PER_SECOND >> 10;
    let (head, heads, path) = (HEAD_MAX >> 20, heads::ALL_BYTES >> 20, PATH_MAX >> 10);
    let (head_h2, body) = (HEAD_MAX_H2 >> 10, BODY_MAX >> 10);
    [
        (
            "Connections",
            format!(
                "{all}, of which {not_admitted} may be of those who were not let in yet; {read_only} on the read-only port"
            ),
        ),
        (
            "Times of a connection",
            format!(
                "{handshake} s for the handshake, {first} s to the first request, {idle} s between requests (the kubelet's)"
            ),
        ),
        (
            "Head of a request",
            format!(
                "{head} MiB (the kubelet's), {head_h2} KiB on HTTP/2, {path} KiB of it a path; {heads} MiB of all long heads of \
                 those who were not let in, and as much of others whose requests wait to be let in"
            ),
        ),
        ("Body of a request", format!("{body} KiB, which nobody reads")),
        ("Requests at once on HTTP/2", format!("{STREAMS_MAX} (Go's)")),
        (
            "An answer that nobody takes",
            format!(
                "{taken} s for a piece of one in memory, and as long for all of it beyond {rate} KiB a second; {hours} h (the kubelet's) \
                 for one that is made as it is taken, such as a log"
            ),
        ),
    ]
}

fn of_logs() -> [(&'static str, String); 5] {
    let (journal, names) = (JOURNAL_LIMIT.as_secs(), NAMES_MAX);
    [
        (
            "Lists, statistics and metrics",
            format!(
                "{WHOLE} at once, {OF_USER} of them of a user, each until it was taken; {WAITING_OF_USER} of a user wait; \
                 {WHOLE_READ_ONLY} on the read-only port, where an address is a user"
            ),
        ),
        (
            "Files that are read for logs",
            format!(
                "{THREADS} of containers and {THREADS} of the node at once; `journalctl` {JOURNALS} times, for {journal} s each"
            ),
        ),
        (
            "Names of a directory below `/logs/`",
            format!(
                "{},{:03}; {THREADS} such pages at once, {OF_USER} of them of a user, each until it was taken",
                names / 1000,
                names % 1000
            ),
        ),
        (
            "Followers of logs",
            format!(
                "{} of a container, {} of a namespace, {} of the node",
                FOLLOWED.each, FOLLOWED.of_namespace, FOLLOWED.all
            ),
        ),
        (
            "Logs that are not followed, and files below `/logs/`",
            format!(
                "{each} of a container and {each} of the node's own, {} of a namespace, {all} of the node, each until it was \
                 taken",
                NOT_FOLLOWED.of_namespace,
                each = NOT_FOLLOWED.each,
                all = NOT_FOLLOWED.all
            ),
        ),
    ]
}

fn of_sessions() -> [(&'static str, String); 6] {
    let (of_pod, sessions) = (places::POD_MAX, places::NODE_MAX);
    let (lasting, of_namespace) = (lasting::NODE_MAX, lasting::NAMESPACE_MAX);
    let (runs_of_namespace, runs) = (run::NAMESPACE_MAX, run::ALL_MAX);
    let (gone, output) = (GONE_AFTER.as_secs(), OUTPUT_MAX >> 20);
    [
        ("Commands, attachments and forwarded ports", format!("{of_pod} of a pod, {sessions} of the node")),
        (
            "Connections to forwarded ports",
            format!(
                "{} of a session, {} of a namespace, {} of the node",
                sockets::SESSION_MAX,
                sockets::NAMESPACE_MAX,
                sockets::NODE_MAX
            ),
        ),
        (
            "Sessions and logs, together",
            format!("{lasting} of the node's connections, {of_namespace} of them of a namespace"),
        ),
        (
            "A session whose client has hung up, and whose process takes no input",
            format!("{gone} s without a byte"),
        ),
        (
            "Commands of `/run`",
            format!(
                "{runs_of_namespace} of a namespace, {runs} of the node, each until its output was taken"
            ),
        ),
        ("Output of `/run`", format!("{output} MiB of each stream (containerd's)")),
    ]
}

fn of_who_asks() -> [(&'static str, String); 3] {
    let (all, rate) = (ALL_WITHIN.as_secs(), RATE.per_second);
    let (tokens, rights) = (authenticate::KEPT_MAX, authorize::KEPT_MAX);
    [
        (
            "Client certificates",
            format!(
                "{CHAIN_MAX} of a connection; {JUDGES} looked at at once of the node itself and those with a connection that was let in, and \
                 as many of others, one of an address"
            ),
        ),
        (
            "Questions to the API server about who asks, and as many about what they may",
            format!(
                "{} at once and {} that wait ({} of an address) of the node itself and those with a connection that was let in, {} and {} \
                 ({} of an address) of others; {rate} a second, {all} s each",
                OF_KNOWN.at_once,
                OF_KNOWN.waiting,
                OF_KNOWN.each,
                OF_STRANGERS.at_once,
                OF_STRANGERS.waiting,
                OF_STRANGERS.each,
            ),
        ),
        (
            "Answers of the API server that are kept",
            format!(
                "{tokens} tokens and {tokens} that are nobody's, {rights} rights and {rights} that are none"
            ),
        ),
    ]
}

#[test]
fn every_bound_is_named_as_it_is() {
    let bounds = of_connections().into_iter().chain(of_logs()).chain(of_sessions()).chain(of_who_asks());
    let bounds: Vec<_> = bounds.collect();
    let bounds: Vec<_> = bounds.iter().map(|(what, bound)| (*what, bound.as_str())).collect();
    assert_eq!(rows(), bounds);
    let known = format!("{} of an address do not count", Places::SERVER.known);
    let left = format!("has taken nothing of its answers for {} s", held::LEFT_AFTER.as_secs());
    assert!(PAGE.contains(&known) && PAGE.contains(&left), "{known} {left}");
}
