use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::symlink,
    path::Path,
};

use berth_core::{
    id::{Attempt, ContainerId, PodName, PodUid},
    pod::port::status::{Published, Remains},
    server::PodPath,
    spec::{ContainerKind, QosClass, Source},
    status::{ContainerState, ContainerStatus, Phase, Terminated},
};
use flate2::{Compression, write::GzEncoder};
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use tempfile::TempDir;

use super::*;
use crate::view::PodView;

fn time(second: u32) -> Timestamp {
    format!("2026-11-21T07:00:{second:02}Z").parse().unwrap()
}

/// A node with a pod `shop/front`, whose container is `web`.
struct Node {
    root: TempDir,
    view: View,
    paths: Paths,
    lanes: Lanes,
    may_split: bool,
}

impl Node {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let pod_logs = root.path().join("pods").to_str().unwrap().to_owned();
        let [root_of, container_logs, run, seccomp] = [(); 4].map(|()| String::new());
        let paths = Paths { root: root_of, pod_logs, container_logs, run, seccomp };
        let lanes = Lanes { containers: Lane::new(2), ..Lanes::default() };
        let node = Self { root, view: View::default(), paths, lanes, may_split: false };
        fs::create_dir_all(node.log(0).parent().unwrap()).unwrap();
        node
    }

    fn log(&self, attempt: Attempt) -> PathBuf {
        let Self { paths, .. } = self;
        PathBuf::from(paths::container_log(paths, &name(), &uid(), &ContainerName::new("web"), attempt))
    }

    fn write(&self, attempt: Attempt, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.log(attempt)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Writes a line for each of these seconds.
    fn say(&self, seconds: std::ops::Range<u32>) {
        for second in seconds {
            self.write(0, &format!("{:.9} stdout F {second}\n", time(second)));
        }
    }

    fn rotate(&self, second: u32) -> PathBuf {
        let to = format!("{}.20261121-0700{second:02}", self.log(0).display());
        fs::rename(self.log(0), &to).unwrap();
        to.into()
    }

    fn show(&self, state: ContainerState, last_state: Option<Terminated>, restart_count: u32) {
        let web = ContainerName::new("web");
        let status = ContainerStatus {
            id: Some(ContainerId::of(&uid(), &web, restart_count)),
            name: web,
            kind: ContainerKind::Main,
            image: String::new(),
            image_id: String::new(),
            state,
            last_state,
            ready: false,
            started: false,
            restart_count,
            user: None,
            actuated: None,
        };
        let manifest = r#"{"metadata": {"name": "front", "namespace": "shop", "uid": "1-a"},
            "spec": {"containers": [{"name": "web", "image": "i"}, {"name": "other", "image": "i"}]}}"#;
        let pod = crate::manifest::pod_from_json(manifest, Source::Api).unwrap();
        let status = PodStatus {
            uid: uid(),
            name: name(),
            phase: Phase::Running,
            reason: String::new(),
            message: String::new(),
            terminating: false,
            conditions: Vec::new(),
            host_ips: Vec::new(),
            pod_ips: Vec::new(),
            start_time: None,
            qos: QosClass::BestEffort,
            recursive_read_only: false,
            resources: None,
            init_containers: Vec::new(),
            ephemeral_containers: Vec::new(),
            containers: vec![status],
        };
        self.view.publish(Published {
            pod,
            status: Arc::new(status),
            sandbox: None,
            remains: Remains::Something,
        });
    }

    /// A pod of which nobody follows anything is published, and is gone.
    fn show_other(&self) {
        let Self { view, .. } = self;
        let mut shown = view.pod(&name()).unwrap();
        let status = Arc::make_mut(&mut shown.status);
        status.uid = PodUid::new("2-b");
        let uid = status.uid.clone();
        let PodView { pod, status, .. } = shown;
        view.publish(Published { pod, status, sandbox: None, remains: Remains::Something });
        view.remove(&uid);
    }

    fn runs(&self) {
        self.show(ContainerState::Running { started_at: time(0) }, None, 0);
    }

    fn has_ended(&self) {
        self.show(ContainerState::Terminated(ended(0)), None, 0);
    }

    fn ask_for(&self, pod: &str, container: &str, query: &str) -> Response {
        let pod_name = PodName { namespace: "shop".to_owned(), name: pod.to_owned() };
        let path = ContainerPath {
            pod: PodPath { name: pod_name, uid: None },
            container: ContainerName::new(container),
        };
        let Self { view, paths, lanes, may_split, .. } = self;
        ContainerLogs { view, paths, lanes, may_split: *may_split }.answer(&path, Some(query), time(50))
    }

    fn ask(&self, query: &str) -> Response {
        self.ask_for("front", "web", query)
    }

    async fn text(&self, query: &str) -> String {
        let (code, text) = whole(self.ask(query)).await;
        assert_eq!(code, 200, "{text}");
        text
    }
}

fn name() -> PodName {
    PodName { namespace: "shop".to_owned(), name: "front".to_owned() }
}

fn uid() -> PodUid {
    PodUid::new("1-a")
}

fn ended(attempt: Attempt) -> Terminated {
    Terminated {
        exit_code: 1,
        reason: "Error".to_owned(),
        message: String::new(),
        started_at: None,
        finished_at: None,
        id: Some(ContainerId::of(&uid(), &ContainerName::new("web"), attempt)),
    }
}

fn compress(path: &Path) {
    let to = fs::File::create(format!("{}.gz", path.display())).unwrap();
    let mut encoder = GzEncoder::new(to, Compression::fast());
    encoder.write_all(&fs::read(path).unwrap()).unwrap();
    encoder.finish().unwrap();
    fs::remove_file(path).unwrap();
}

fn numbers(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

async fn whole(response: Response) -> (u16, String) {
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(bytes.to_vec()).unwrap())
}

/// The next piece of an answer.
async fn piece(response: &mut Response) -> Option<String> {
    let frame = response.body_mut().frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

/// Pieces until there is as much as expected.
async fn expect(response: &mut Response, expected: &str) {
    let mut text = String::new();
    while text.len() < expected.len() {
        text += &piece(response).await.unwrap();
    }
    assert_eq!(text, expected);
}

#[tokio::test]
async fn refusals_have_the_codes_and_words_of_the_kubelet() {
    let node = Node::new();
    node.runs();
    for (pod, container, query, code, text) in [
        ("front", "web", "tailLines=x", 400, r#"{"message": "Unable to decode query."}"#),
        ("front", "web", "limitBytes=0", 422, r#"{"message": "Invalid request."}"#),
        ("back", "web", "limitBytes=0", 422, r#"{"message": "Invalid request."}"#),
        ("back", "web", "", 404, r#"pod "back" does not exist"#),
        ("front", "db", "stream=Stdout", 404, r#"container "db" not found in pod "front""#),
        (
            "front",
            "web",
            "stream=Stderr",
            400,
            r#"unable to return the given log stream: "Stderr". Please enable PodLogsQuerySplitStreams feature gate in kubelet"#,
        ),
        ("front", "other", "", 400, r#"container "other" in pod "front" is not available"#),
        (
            "front",
            "web",
            "previous=true",
            400,
            r#"previous terminated container "web" in pod "front" not found"#,
        ),
    ] {
        let answer = whole(node.ask_for(pod, container, query)).await;
        assert_eq!(answer, (code, text.to_owned()), "{pod} {container} {query}");
    }
    let waiting = ContainerState::Waiting { reason: "ContainerCreating".to_owned(), message: String::new() };
    node.show(waiting, None, 0);
    let text = r#"container "web" in pod "front" is waiting to start: ContainerCreating"#;
    assert_eq!(whole(node.ask("follow=true")).await, (400, text.to_owned()));
}

#[tokio::test]
async fn what_is_wanted_of_a_log_is_given_over_all_its_files() {
    let node = Node::new();
    node.runs();
    node.say(0..10);
    compress(&node.rotate(10));
    node.say(10..20);
    node.rotate(20);
    node.say(20..30);
    let last = "2026-11-21T07:00:28.000000000Z 28\n2026-11-21T07:00:29.000000000Z 29\n";
    for (query, expected) in [
        ("", numbers(0..30)),
        ("tailLines=0", String::new()),
        ("tailLines=3", numbers(27..30)),
        ("tailLines=25", numbers(5..30)),
        ("tailLines=1000000", numbers(0..30)),
        ("tail=all", numbers(0..30)),
        ("sinceTime=2026-11-21T07:00:15Z", numbers(15..30)),
        ("sinceSeconds=45", numbers(5..30)),
        ("sinceSeconds=45&tailLines=12", numbers(18..30)),
        ("sinceSeconds=25&tailLines=12", numbers(25..30)),
        ("limitBytes=7&tailLines=15", "15\n16\n1".to_owned()),
        ("tailLines=2&timestamps=true", last.to_owned()),
        ("tailLines=2&timestamps=true&limitBytes=40", last[..40].to_owned()),
    ] {
        assert_eq!(node.text(query).await, expected, "{query}");
    }
    let response = node.ask("");
    assert_eq!(response.headers()["content-type"], "text/plain");
    assert!(!response.headers().contains_key("content-length"));
}

#[tokio::test]
async fn one_stream_is_given_where_its_gate_is_on() {
    let node = Node { may_split: true, ..Node::new() };
    node.runs();
    node.write(0, "2026-11-21T07:00:01Z stdout F out\n2026-11-21T07:00:02Z stderr F err\n");
    for (stream, expected) in [("Stdout", "out\n"), ("Stderr", "err\n"), ("All", "out\nerr\n")] {
        assert_eq!(node.text(&format!("stream={stream}")).await, expected);
    }
}

#[tokio::test]
async fn a_log_is_followed_through_rotations_until_its_run_has_ended() {
    let node = Node::new();
    node.runs();
    node.say(0..3);
    let mut response = node.ask("follow=true&tailLines=2");
    expect(&mut response, &numbers(1..3)).await;
    node.say(3..5);
    expect(&mut response, &numbers(3..5)).await;
    // A prompt is seen before its line ends.
    node.write(0, "2026-11-21T07:00:05Z stdout P pro\n");
    expect(&mut response, "pro").await;
    node.write(0, "2026-11-21T07:00:05Z stdout F mpt\n");
    compress(&node.rotate(6));
    node.say(6..8);
    node.rotate(8);
    node.say(8..9);
    expect(&mut response, &("mpt\n".to_owned() + &numbers(6..9))).await;
    // Written before the end was told, or after it.
    node.say(9..11);
    node.has_ended();
    expect(&mut response, &numbers(9..11)).await;
    assert_eq!(piece(&mut response).await, None);
}

#[tokio::test]
async fn a_follower_is_let_go_when_its_pod_or_its_run_is_gone() {
    let ends: [&dyn Fn(&Node); 4] = [
        &Node::has_ended,
        &|node| node.view.remove(&uid()),
        &|node| node.show(ContainerState::Running { started_at: time(9) }, Some(ended(0)), 1),
        &|node| {
            fs::remove_dir_all(node.log(0).parent().unwrap()).unwrap();
            node.view.remove(&uid());
        },
    ];
    for end in ends {
        let node = Node::new();
        node.runs();
        node.say(0..1);
        let mut response = node.ask("follow=true");
        expect(&mut response, "0\n").await;
        let (next, ()) = tokio::join!(piece(&mut response), async { end(&node) });
        assert_eq!(next, None);
    }
    // Of a run that has ended everything is given, and that is all.
    let node = Node::new();
    node.has_ended();
    node.say(0..2);
    assert_eq!(node.text("follow=true").await, numbers(0..2));
}

#[tokio::test]
async fn a_limit_ends_a_follower() {
    let node = Node::new();
    node.runs();
    node.say(0..1);
    let mut response = node.ask("follow=true&limitBytes=5");
    expect(&mut response, "0\n").await;
    node.say(1..9);
    expect(&mut response, "1\n2").await;
    assert_eq!(piece(&mut response).await, None);
}

#[tokio::test]
async fn an_earlier_run_has_its_own_log_until_that_is_removed() {
    let node = Node::new();
    node.show(ContainerState::Running { started_at: time(9) }, Some(ended(3)), 4);
    node.write(3, "2026-11-21T07:00:01Z stdout F before\n");
    node.write(4, "2026-11-21T07:00:02Z stdout F now\n");
    assert_eq!(node.text("").await, "now\n");
    assert_eq!(node.text("previous=true").await, "before\n");
    assert_eq!(node.text("previous=true&follow=true").await, "before\n");
    fs::remove_file(node.log(3)).unwrap();
    let gone = format!("unable to retrieve container logs for containerd://{}", ended(3).id.unwrap());
    assert_eq!(node.text("previous=true").await, gone);
    assert_eq!(node.text("previous=true&follow=true").await, gone);
}

#[tokio::test]
async fn cve_2025_0750_and_cve_2026_53489_no_log_is_read_through_links_or_dots() {
    let secret = "2026-11-21T07:00:01Z stdout F secret\n";
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("0.log"), secret).unwrap();
    let link_file = |node: &Node| symlink(outside.path().join("0.log"), node.log(0)).unwrap();
    let link_inside = |node: &Node| {
        fs::write(node.root.path().join("pods/other.log"), secret).unwrap();
        symlink("../../other.log", node.log(0)).unwrap();
    };
    let link_directory = |node: &Node| {
        let directory = node.log(0).parent().unwrap().to_owned();
        fs::remove_dir(&directory).unwrap();
        symlink(outside.path(), directory).unwrap();
    };
    let pipe = |node: &Node| {
        nix::unistd::mkfifo(&node.log(0), nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    let hostile: [&dyn Fn(&Node); 4] = [&link_file, &link_inside, &link_directory, &pipe];
    for prepare in hostile {
        for query in ["", "follow=true", "tailLines=1", "sinceSeconds=1000"] {
            let node = Node::new();
            node.runs();
            prepare(&node);
            let text = node.text(query).await;
            assert!(
                text.starts_with("failed to read log file") && !text.contains("secret"),
                "{query}: {text}"
            );
        }
    }
    // One that takes the place of the log while it is followed.
    let node = Node::new();
    node.runs();
    node.say(0..1);
    let mut response = node.ask("follow=true");
    expect(&mut response, "0\n").await;
    fs::remove_file(node.log(0)).unwrap();
    link_file(&node);
    let told = piece(&mut response).await.unwrap();
    assert!(told.starts_with("failed to read log file") && !told.contains("secret"), "{told}");
    assert_eq!(piece(&mut response).await, None);
    for container in ["..", "../web", "web/../web", "/web", "", "."] {
        let (code, _) = whole(node.ask_for("front", container, "")).await;
        assert_eq!(code, 404, "{container}");
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_or_goes_holds_nothing() {
    let node = Node::new();
    node.runs();
    node.write(0, &format!("2026-11-21T07:00:01.000000000Z stdout F {}\n", "x".repeat(1000)).repeat(2000));
    let asked: Vec<_> = (0..20).map(|_| node.ask("follow=true")).collect();
    assert_eq!(node.lanes.containers.free(), 2);
    let mut slow = Vec::new();
    for mut response in asked {
        let first = piece(&mut response).await.unwrap();
        // What is not taken is not read.
        assert!(first.len() < 2 * PIECE_BYTES, "{}", first.len());
        slow.push(response);
    }
    assert_eq!(node.lanes.containers.free(), 2);
    drop(slow);
    node.has_ended();
    assert_eq!(node.text("follow=true").await.len(), 2000 * 1001);
}

#[tokio::test]
async fn followers_have_places_share_an_inotify_and_hear_of_their_own_pod() {
    let node = Node::new();
    node.runs();
    node.say(0..1);
    let mut following: Vec<_> = (0..64).map(|_| node.ask("follow=true")).collect();
    let (code, text) = whole(node.ask("follow=true")).await;
    assert!(code == 429 && text.starts_with("the container has 64 followers"), "{code} {text}");
    assert_eq!(node.text("").await, "0\n", "who does not follow has a place of another kind");
    for response in &mut following {
        expect(response, "0\n").await;
        assert!(piece(response).now_or_never().is_none());
    }
    assert_eq!(node.lanes.watcher.directories(), 1);
    // What another pod is wakes nobody.
    let mut changes = node.view.changes(&uid()).unwrap();
    node.show_other();
    assert!(!changes.has_changed().unwrap());
    node.runs();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    following.pop();
    let mut last = node.ask("follow=true");
    expect(&mut last, "0\n").await;
    drop((following, last));
    assert_eq!(node.lanes.watcher.directories(), 0);
}

#[tokio::test]
async fn a_log_that_nobody_takes_has_its_place_all_the_time() {
    let node = Node::new();
    node.runs();
    node.say(0..1);
    let mut held: Vec<_> = (0..64).map(|_| node.ask("")).collect();
    let (code, text) = whole(node.ask("")).await;
    assert!(code == 429 && text.starts_with("the container has 64 logs under way"), "{code} {text}");
    assert_eq!(whole(node.ask_for("front", "other", "")).await.0, 400, "it does not run");
    held.pop();
    assert_eq!(node.text("").await, "0\n");
    drop(held);
    assert!(node.lanes.logs.are_free());
}
