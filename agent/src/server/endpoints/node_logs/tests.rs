use std::{fs, io::Read as _, os::unix::fs::symlink, path::Path};

use flate2::read::GzDecoder;
use futures::{FutureExt as _, future::join_all};
use http::{HeaderName, Request, header};
use http_body_util::BodyExt as _;
use tempfile::TempDir;

use super::*;
use crate::server::{
    lanes::{JOURNALS, Lane, THREADS},
    parts::{OF_USER, OfUser},
};

struct Node {
    /// With the log directory `log`, and what is none of its.
    root: TempDir,
    logs: NodeLogs,
}

impl Node {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        fs::create_dir(root.path().join("log")).unwrap();
        let lanes = Lanes { node: Lane::new(1), ..Lanes::default() };
        let mut logs = NodeLogs::of(NodeLogAccess::Services, &lanes);
        logs.root = root.path().join("log");
        logs.journalctl.command = "/nowhere/journalctl".to_owned();
        Self { root, logs }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.logs.root.join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    /// A journalctl that knows `kubelet.service` and says its arguments.
    fn with_journal(mut self, does: &str) -> Self {
        let script = self.root.path().join("journalctl");
        let (asked, gate) = (self.root.path().join("asked"), self.root.path().join("gate"));
        let (asked, gate) = (asked.display(), gate.display());
        let waits = format!(": > {asked}; [ ! -p {gate} ] || cat {gate}");
        let text = format!("if [ \"$1\" = --field ]; then {waits}; echo kubelet.service; exit; fi\n{does}\n");
        fs::write(&script, text).unwrap();
        let name = script.to_str().unwrap().to_owned();
        // The arguments come behind.
        (self.logs.journalctl.command, self.logs.journalctl.args) = ("sh".to_owned(), vec![name]);
        self
    }

    async fn ask_with(&self, path: &str, headers: &[(HeaderName, &str)]) -> Response {
        let mut request = Request::get(format!("/logs/{path}"));
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let path = path.split('?').next().unwrap();
        self.logs.answer(path, &parts).await
    }

    async fn ask(&self, path: &str) -> (u16, String) {
        text(self.ask_with(path, &[]).await).await
    }
}

async fn text(response: Response) -> (u16, String) {
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(bytes.to_vec()).unwrap())
}

fn page(names: &[&str]) -> String {
    let rows: String = names.iter().map(|name| format!("<a href=\"{name}\">{name}</a>\n")).collect();
    format!("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{rows}</pre>\n")
}

const ABSENT: &str = "404 page not found\n";
const FORBIDDEN: &str = "403 Forbidden\n";

#[tokio::test]
async fn files_and_directories_are_given_as_gos_file_server_gives_them() {
    let node = Node::new();
    node.write("syslog", "a line\n");
    node.write("pods/a/0.log", "of a pod\n");
    node.write("site/index.html", "<script>");
    for (path, code, body) in [
        ("", 200, page(&["pods/", "site/", "syslog"]).as_str()),
        ("pods/", 200, &page(&["a/"])),
        ("syslog", 200, "a line\n"),
        ("pods/a/0.log", 200, "of a pod\n"),
        ("site/", 200, "<script>"),
        ("nothing", 404, ABSENT),
        ("syslog/below", 404, ABSENT),
        ("pods/a", 301, ""),
    ] {
        assert_eq!(node.ask(path).await, (code, body.to_owned()), "{path}");
    }
    for (path, to) in [
        ("pods", "pods/"),
        ("pods/a", "a/"),
        ("pods?x=1", "pods/?x=1"),
        ("syslog/", "../syslog"),
        ("site/index.html", "./"),
        ("index.html", "./"),
    ] {
        let response = node.ask_with(path, &[]).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::LOCATION]),
            (301, &to.parse().unwrap()),
            "{path}"
        );
    }
    let page = node.ask_with("site/", &[]).await;
    assert_eq!(page.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    let file = node.ask_with("syslog", &[]).await;
    assert_eq!(file.headers()[header::CONTENT_LENGTH], "7");
    assert_eq!(file.headers()[header::ACCEPT_RANGES], "bytes");
}

#[tokio::test]
async fn a_part_of_a_file_is_given_and_nothing_that_is_not_newer() {
    let node = Node::new();
    node.write("syslog", "0123456789");
    for (range, code, body, about) in [
        ("bytes=2-4", 206, "234", Some("bytes 2-4/10")),
        ("bytes=-3", 206, "789", Some("bytes 7-9/10")),
        ("bytes=0-1,3-4", 200, "0123456789", None),
        ("bytes=10-", 416, "invalid range: failed to overlap\n", Some("bytes */10")),
        ("bytes=x", 416, "invalid range\n", None),
    ] {
        let response = node.ask_with("syslog", &[(header::RANGE, range)]).await;
        let told =
            response.headers().get(header::CONTENT_RANGE).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(told.as_deref(), about, "{range}");
        assert_eq!(text(response).await, (code, body.to_owned()), "{range}");
    }
    let modified = node.ask_with("syslog", &[]).await.headers()[header::LAST_MODIFIED].clone();
    for (since, code) in
        [(modified.to_str().unwrap(), 304), ("Sun, 06 Nov 1994 08:49:37 GMT", 200), ("yesterday", 200)]
    {
        let response = node.ask_with("syslog", &[(header::IF_MODIFIED_SINCE, since)]).await;
        assert_eq!(response.status().as_u16(), code, "{since}");
    }
}

#[tokio::test]
async fn a_large_file_comes_in_pieces_and_one_that_shrinks_breaks_off() {
    let node = Node::new();
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|number| b'0' + u8::try_from(number % 10).unwrap()).collect();
    node.write("large", &bytes);
    let (code, body) = node.ask("large").await;
    assert!(code == 200 && body.as_bytes() == bytes);
    let mut response = node.ask_with("large", &[]).await;
    response.body_mut().frame().await.unwrap().unwrap();
    node.write("large", "");
    response.body_mut().frame().await.unwrap().unwrap_err();
}

#[tokio::test]
async fn links_are_followed_below_the_log_directory_and_nowhere_else() {
    let node = Node::new();
    fs::write(node.root.path().join("secret"), "secret\n").unwrap();
    node.write("pods/a/0.log", "of a pod\n");
    node.write("containers/x", "");
    let link = |to: &Path, path: &str| symlink(to, node.path(path)).unwrap();
    link(&node.path("pods/a/0.log"), "containers/absolute.log");
    link(Path::new("../pods/a/0.log"), "containers/relative.log");
    link(Path::new("absolute.log"), "containers/twice.log");
    link(Path::new("pods"), "to-pods");
    link(Path::new("../secret"), "containers/a");
    link(Path::new("../../secret"), "containers/b");
    link(&node.root.path().join("secret"), "c");
    link(node.root.path(), "d");
    link(Path::new("/proc/self/root"), "e");
    link(Path::new("/etc/passwd"), "f");
    link(&node.path("g"), "g");
    link(&node.path("pods/../../secret"), "h");
    link(Path::new("self"), "self");
    nix::unistd::mkfifo(&node.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in ["containers/absolute.log", "containers/relative.log", "to-pods/a/0.log"] {
        assert_eq!(node.ask(path).await, (200, "of a pod\n".to_owned()), "{path}");
    }
    // A link to a directory is none itself.
    assert!(node.ask("").await.1.contains("<a href=\"to-pods\">to-pods</a>"));
    for path in ["containers/a", "nothing/../../secret"] {
        assert_eq!(node.ask(path).await, (404, ABSENT.to_owned()), "{path}");
    }
    for path in [
        "containers/b",
        "c",
        "d",
        "d/secret",
        "e/",
        "e/etc/passwd",
        "f",
        "g",
        "h",
        "pipe",
        "../secret",
        "pods/../../secret",
    ] {
        assert_eq!(node.ask(path).await, (403, FORBIDDEN.to_owned()), "{path}");
    }
    for path in ["self", "containers/twice.log"] {
        let (code, body) = node.ask(path).await;
        assert!(code >= 400 || body == "of a pod\n", "{path}: {code} {body}");
    }
}

#[tokio::test]
async fn what_is_off_is_refused_and_a_query_may_be_of_no_account() {
    let mut node = Node::new();
    node.write("syslog", "a line\n");
    node.logs.access = NodeLogAccess::Files;
    assert_eq!(node.ask("syslog?query=&boot=x").await, (200, "a line\n".to_owned()));
    node.logs.access = NodeLogAccess::Nothing;
    assert_eq!(node.ask("syslog").await, (405, "logs endpoint is disabled.\n".to_owned()));
}

#[tokio::test]
async fn queries_are_refused_in_the_words_of_the_kubelet() {
    let node = Node::new();
    node.write("a/b.log", "of a file\n");
    for (path, code, body) in [
        ("?query=", 400, "query: Invalid value: [\"\"]: may not be empty\n"),
        ("?query=a&boot=x", 400, "boot: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax\n"),
        ("a/?query=a", 406, "path not allowed in query mode\n"),
        ("?tailLines=1", 406, "query: Required value: cannot be empty with options\n"),
        ("?query=a;b", 200, &page(&["a/"])),
        ("?query=a%24", 406, "query: Invalid value: \"a$\": input contains unsupported characters\n"),
        ("?query=a%2Fb.log", 200, "of a file\n"),
        (
            "?query=a%2Fb.log&boot=0",
            406,
            "query: Invalid value: [\"a/b.log\"]: cannot specify file with options\n",
        ),
        ("?query=a%2Fc", 406, "query: Invalid value: [\"a/c\"]: statat a/c: no such file or directory\n"),
        (
            "?query=%2Fa%2Fb.log",
            406,
            "query: Invalid value: [\"/a/b.log\"]: statat /a/b.log: path escapes from parent\n",
        ),
        (
            "?query=..%2Fsecret",
            406,
            "query: Invalid value: [\"../secret\"]: statat ../secret: path escapes from parent\n",
        ),
    ] {
        assert_eq!(node.ask(path).await, (code, body.to_owned()), "{path}");
    }
}

#[tokio::test]
async fn services_without_a_journal_are_looked_for_in_files() {
    let node = Node::new();
    node.write("a", "of a\n");
    node.write("b.log", "of b\n");
    node.write("c/c.log", "of c\n");
    symlink("/etc/passwd", node.path("d")).unwrap();
    for (path, body) in [
        ("?query=a", "of a\n"),
        ("?query=b&query=a", "of b\nof a\n"),
        ("?query=c", "of c\n"),
        ("?query=e&query=c", "\nlog not found for e\nof c\n"),
        ("?query=d", "\nerror getting log for d: permission denied\n"),
        ("?query=..", "\nerror getting log for ..: permission denied\n"),
        (
            "?query=a&query=b&tailLines=1",
            "\noptions present and query resolved to log files for [a b]\ntry without specifying options\n",
        ),
    ] {
        assert_eq!(node.ask(path).await, (200, body.to_owned()), "{path}");
    }
    let response = node.ask_with("?query=a", &[(header::ACCEPT_ENCODING, "gzip")]).await;
    assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain;charset=UTF-8");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let mut unpacked = String::new();
    GzDecoder::new(bytes.as_ref()).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, "of a\n");
}

#[tokio::test]
async fn services_of_the_journal_are_asked_of_journalctl() {
    let node = Node::new().with_journal("printf '<%s>' \"$@\"; echo; echo broken >&2; exit 3");
    node.write("other", "of a file\n");
    for (path, body) in [
        (
            "?query=kubelet&tailLines=5&pattern=a%20b%27%24(id)",
            "<--utc><--no-pager><--output=short-precise><--pager-end><--lines=5><--unit=kubelet><--grep=a b'$(id)>\nbroken\n",
        ),
        (
            "?query=other&query=kubelet",
            "<--utc><--no-pager><--output=short-precise><--unit=kubelet>\nbroken\nof a file\n",
        ),
    ] {
        assert_eq!(node.ask(path).await, (200, body.to_owned()), "{path}");
    }
}

#[tokio::test]
async fn a_journal_without_end_is_ended_with_its_reader() {
    let node = Node::new().with_journal("exec yes");
    let all = node.logs.lanes.journals.free();
    let mut response = node.ask_with("?query=kubelet", &[]).await;
    response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(node.logs.lanes.journals.free(), all - 1);
    drop(response);
    while node.logs.lanes.journals.free() < all {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_units_of_the_journal_are_asked_for_in_a_place_too() {
    let node = Node::new().with_journal("echo of the journal");
    let (asked, gate) = (node.root.path().join("asked"), node.root.path().join("gate"));
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let lane = &node.logs.lanes.journals;
    let all = lane.free();
    let mut asking = std::pin::pin!(node.ask("?query=kubelet"));
    while !asked.exists() {
        assert!(futures::poll!(asking.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(lane.free(), all - 1);
    // It waits for somebody who writes.
    drop(fs::OpenOptions::new().write(true).open(gate).unwrap());
    assert_eq!(asking.await, (200, "of the journal\n".to_owned()));
    while lane.free() < all {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_started_has_one_thread_whoever_asks_for_it() {
    let node = Node::new().with_journal("echo of the journal");
    node.write("kubelet", "of a file\n");
    let (answer, hangs) = std::sync::mpsc::sync_channel::<()>(0);
    let hung = node.logs.journalctl.starter.run(services::JOURNAL_LIMIT, move || hangs.recv().is_ok());
    assert!(hung.now_or_never().is_none(), "it is begun, and nobody waits for it");
    let asked = join_all((0..=JOURNALS).map(|_| node.ask("?query=kubelet")));
    // Time goes on by itself nowhere, since a thread is at work.
    let time = async {
        loop {
            tokio::time::advance(services::JOURNAL_LIMIT).await;
        }
    };
    let said = tokio::select! {
        said = asked => said,
        () = time => unreachable!(),
    };
    assert!(said.iter().all(|said| *said == (200, "of a file\n".to_owned())), "{said:?}");
    assert!(!node.root.path().join("asked").exists(), "no other was started");
    drop(answer);
    // What is printed takes as long as it does.
    tokio::time::resume();
    assert_eq!(node.ask("?query=kubelet").await, (200, "of the journal\n".to_owned()));
}

#[tokio::test]
async fn a_page_of_names_has_its_place_until_it_was_taken() {
    let node = Node::new();
    node.write("a/b", "");
    node.write("file", "x");
    let page = node.ask_with("a/", &[]).await;
    assert_eq!(node.logs.lanes.pages.free(), THREADS - 1);
    assert_eq!(node.ask("file").await, (200, "x".to_owned()), "it holds no thread");
    drop(page);
    assert_eq!(node.logs.lanes.pages.free(), THREADS);
}

#[tokio::test]
async fn pages_that_one_user_does_not_take_keep_no_other_waiting() {
    let node = Node::new();
    node.write("a/b", "");
    let [own, other] = [(); 2].map(|()| OfUser::default());
    let ask = async |of: &OfUser| {
        let request = Request::get("/logs/a/").extension(of.clone());
        let (parts, ()) = request.body(()).unwrap().into_parts();
        node.logs.answer("a/", &parts).await
    };
    let mut held = Vec::new();
    for _ in 0..OF_USER {
        held.push(ask(&own).await);
    }
    let free = node.logs.lanes.pages.free();
    assert_eq!(free, THREADS - OF_USER);
    let mut fifth = Box::pin(ask(&own));
    assert!(futures::poll!(fifth.as_mut()).is_pending());
    assert_eq!(node.logs.lanes.pages.free(), free, "it waits, and has no place of the others'");
    assert_eq!(text(ask(&other).await).await, (200, page(&["b"])));
    assert!(futures::poll!(fifth.as_mut()).is_pending());
    held.pop();
    assert_eq!(text(fifth.await).await, (200, page(&["b"])));
}

#[tokio::test]
async fn a_log_of_the_node_has_its_place_until_it_was_taken() {
    let node = Node::new();
    node.write("syslog", "a line\n");
    let mut held = Vec::new();
    for path in ["syslog", "?query=kubelet", "nothing", "pods?query=../x"].into_iter().cycle().take(64) {
        held.push(node.ask_with(path, &[]).await);
    }
    let (code, text) = node.ask("syslog").await;
    assert!(code == 429 && text.starts_with("the node has 64 logs of its own under way"), "{code} {text}");
    held.pop();
    assert_eq!(node.ask("syslog").await, (200, "a line\n".to_owned()));
    drop(held);
    assert!(node.logs.lanes.logs.are_free());
}
