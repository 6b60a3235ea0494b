//! Probes against servers that do what a test says.

use std::{
    future::Future,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    id::PodUid,
    pod::port::probe::{HttpProbe, ProbeAnswer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Mutex, mpsc},
};

use super::{grpc, http, tcp};

/// Far more than an answer takes.
const ENOUGH: Duration = Duration::from_secs(20);

fn pod() -> PodUid {
    PodUid::new("uid-web")
}

/// What was heard by a server that does the same for every client.
struct Server {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers every request with these bytes and closes.
    async fn says(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::does(move |mut stream: TcpStream| {
            let answer = answer.clone();
            async move {
                drop(stream.write_all(&answer).await);
            }
        })
        .await
    }

    /// Reads the head of every request, then does this with the connection.
    async fn does<F: Future<Output = ()> + Send + 'static>(
        act: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self {
        Self::on("127.0.0.1:0".parse().unwrap(), act).await
    }

    async fn on<F: Future<Output = ()> + Send + 'static>(
        address: SocketAddr,
        act: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_gone) => break,
                    }
                }
                hears.lock().await.push(String::from_utf8_lossy(&head).into_owned());
                tokio::spawn(act(stream));
            }
        });
        Self { address, heard }
    }

    fn probe(&self, path: &str, headers: &[(&str, &str)]) -> HttpProbe {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        HttpProbe {
            tls: false,
            host: self.address.ip().to_string(),
            port: self.address.port(),
            path: path.to_owned(),
            headers: headers.collect(),
        }
    }

    async fn ask(&self) -> ProbeAnswer {
        http::ask(&pod(), &self.probe("/x", &[]), ENOUGH).await
    }
}

fn failure(text: String) -> ProbeAnswer {
    ProbeAnswer::Failure(text)
}

#[tokio::test]
async fn the_status_decides() {
    for (status, expected) in [
        ("200 OK", ProbeAnswer::Success),
        ("204 No Content", ProbeAnswer::Success),
        ("299 Odd", ProbeAnswer::Success),
        ("304 Not Modified", ProbeAnswer::Warning("Probe terminated redirects, Response body: ".into())),
        ("302 Found", ProbeAnswer::Warning("Probe terminated redirects, Response body: ".into())),
        ("400 Bad Request", failure("HTTP probe failed with statuscode: 400".into())),
        ("503 Service Unavailable", failure("HTTP probe failed with statuscode: 503".into())),
    ] {
        let server = Server::says(format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n")).await;
        assert_eq!(server.ask().await, expected, "{status}");
    }
    let old = Server::says("HTTP/1.0 200 OK\r\n\r\nhello").await;
    assert_eq!(old.ask().await, ProbeAnswer::Success);
}

#[tokio::test]
async fn a_request_is_as_the_kubelets() {
    let server = Server::says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let (address, default) = (server.address, "User-Agent: kube-probe/1.36\r\nAccept: */*\r\n");
    type Case = (&'static str, &'static [(&'static str, &'static str)], String);
    let cases: [Case; 4] = [
        ("/a?b", &[], format!("GET /a?b HTTP/1.1\r\nHost: {address}\r\n{default}Connection: close\r\n\r\n")),
        (
            "healthz",
            &[("Host", "a.example"), ("x-y", " z "), ("Connection", "keep-alive"), ("Content-Length", "9")],
            format!(
                "GET /healthz HTTP/1.1\r\nHost: a.example\r\nX-Y: z\r\n{default}Connection: close\r\n\r\n"
            ),
        ),
        (
            "/",
            &[("User-Agent", "me"), ("Accept", "text/html")],
            format!(
                "GET / HTTP/1.1\r\nHost: {address}\r\nUser-Agent: me\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
            ),
        ),
        (
            "/",
            &[("User-Agent", ""), ("Accept", "")],
            format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
        ),
    ];
    for (path, headers, expected) in cases {
        assert_eq!(http::ask(&pod(), &server.probe(path, headers), ENOUGH).await, ProbeAnswer::Success);
        assert_eq!(server.heard.lock().await.pop(), Some(expected), "{path} {headers:?}");
    }
    let injected = server.probe("/", &[("X", "a\r\nY: b")]);
    let answer = http::ask(&pod(), &injected, ENOUGH).await;
    let expected = format!("Get \"http://{address}/\": net/http: invalid header field value for \"X\"");
    assert_eq!(answer, failure(expected));
    assert_eq!(server.heard.lock().await.len(), 0);
}

#[tokio::test]
async fn a_redirect_to_the_same_host_is_followed_and_another_is_told() {
    let moved = |to: &str| format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 5\r\n\r\nmoved");
    let end = Server::says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let server = Server::says(moved(&format!("http://{}/end", end.address))).await;
    assert_eq!(server.ask().await, ProbeAnswer::Success);
    assert!(end.heard.lock().await[0].starts_with("GET /end HTTP/1.1\r\n"));

    let elsewhere = Server::says(moved("http://b.example/")).await;
    let text = "Probe terminated redirects, Response body: moved";
    assert_eq!(elsewhere.ask().await, ProbeAnswer::Warning(text.into()));

    let circle = Server::says(moved("/again")).await;
    assert_eq!(circle.ask().await, failure("Get \"/again\": stopped after 10 redirects".into()));
    assert_eq!(circle.heard.lock().await.len(), 10);
}

/// Source: `Client.do` of Go's `net/http`.
#[tokio::test]
async fn a_written_host_goes_along_where_a_redirect_names_no_scheme() {
    type Case = (fn(SocketAddr) -> String, bool);
    let cases: [Case; 3] = [
        (|_| "/again".to_owned(), true),
        (|address| format!("//{address}/again"), true),
        (|address| format!("http://{address}/again"), false),
    ];
    for (location, is_kept) in cases {
        let server = Server::does(move |mut stream: TcpStream| async move {
            let to = location(stream.local_addr().unwrap());
            let answer = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
            drop(stream.write_all(answer.as_bytes()).await);
        })
        .await;
        let probe = server.probe("/", &[("Host", "a.example")]);
        let answer = http::ask(&pod(), &probe, ENOUGH).await;
        assert!(matches!(answer, ProbeAnswer::Failure(_)), "{answer:?}");
        let heard = server.heard.lock().await;
        let is_written = heard.iter().map(|head| head.contains("\r\nHost: a.example\r\n"));
        let mut expected = [is_kept; 10];
        expected[0] = true;
        assert_eq!(is_written.collect::<Vec<_>>(), expected);
    }
}

/// An address where nobody listens. While the socket is there, nobody else is given its port.
fn closed() -> (TcpSocket, SocketAddr) {
    let bound = TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = bound.local_addr().unwrap();
    (bound, address)
}

#[tokio::test]
async fn whoever_does_not_listen_or_breaks_off_has_failed_in_gos_words() {
    let nobody = Server::says("").await.address;
    let (_bound, closed) = closed();
    let refused = format!("dial tcp {closed}: connect: connection refused");
    let probe = HttpProbe {
        tls: false,
        host: "127.0.0.1".into(),
        port: closed.port(),
        path: "/".into(),
        headers: vec![],
    };
    let answer = http::ask(&pod(), &probe, ENOUGH).await;
    assert_eq!(answer, failure(format!("Get \"http://{closed}/\": {refused}")));
    assert_eq!(tcp(&pod(), "127.0.0.1", closed.port(), ENOUGH).await, failure(refused.clone()));
    let answer = grpc::ask(&pod(), "127.0.0.1", closed.port(), "", ENOUGH).await;
    assert_eq!(answer, failure(format!("error: failed to connect service at \"{closed}\": {refused}")));

    let answer = http::ask(&pod(), &HttpProbe { port: nobody.port(), ..probe.clone() }, ENOUGH).await;
    assert_eq!(answer, failure(format!("Get \"http://{nobody}/\": EOF")));
    assert_eq!(tcp(&pod(), "127.0.0.1", nobody.port(), ENOUGH).await, ProbeAnswer::Success);
}

/// How a probe asks.
#[derive(Debug, Clone, Copy)]
enum By {
    Http,
    Https,
    Tcp,
    Grpc,
}

async fn asked(by: By, address: SocketAddr) -> ProbeAnswer {
    let (host, port) = ("127.0.0.1", address.port());
    let get = |tls| HttpProbe { tls, host: host.into(), port, path: "/".into(), headers: Vec::new() };
    match by {
        By::Http => http::ask(&pod(), &get(false), ENOUGH).await,
        By::Https => http::ask(&pod(), &get(true), ENOUGH).await,
        By::Tcp => tcp(&pod(), host, port, ENOUGH).await,
        By::Grpc => grpc::ask(&pod(), host, port, "", ENOUGH).await,
    }
}

/// A server that reads, and never answers; what tells of each client that it has heard.
async fn silent() -> (SocketAddr, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (hears, heard) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut clients = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.read_u8().await.unwrap();
            clients.push(stream);
            hears.send(()).await.unwrap();
        }
    });
    (address, heard)
}

/// A server that says this to each client before it has heard anything.
async fn greets(greeting: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(stream.write_all(greeting.as_bytes()).await);
        }
    });
    address
}

/// A server that takes no connections, and the one that may wait for it: others get no answer.
async fn full() -> (TcpListener, TcpStream) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let waiting = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener, waiting)
}

/// What comes of a question that nobody answers. Once it is begun, its time passes at once.
async fn given_up(by: By, address: SocketAddr, begun: impl Future<Output = ()>) -> ProbeAnswer {
    let time_passes = async {
        begun.await;
        tokio::time::pause();
    };
    let (answer, ()) = tokio::join!(asked(by, address), time_passes);
    tokio::time::resume();
    answer
}

#[tokio::test]
async fn whoever_takes_too_long_has_failed_and_holds_nothing() {
    let ((silent, mut heard), (full, _waiting)) = (silent().await, full().await);
    let unreached = full.local_addr().unwrap();
    let why = "context deadline exceeded";
    let late = |scheme: &str, address: SocketAddr| {
        format!("Get \"{scheme}://{address}/\": {why} (Client.Timeout exceeded while awaiting headers)")
    };
    for (by, expected) in [
        (By::Http, late("http", silent)),
        (By::Https, late("https", silent)),
        (By::Grpc, format!("timeout: failed to connect service \"{silent}\" within 20s: {why}")),
    ] {
        let is_heard = async { heard.recv().await.expect("the server goes on") };
        assert_eq!(given_up(by, silent, is_heard).await, failure(expected), "{by:?}");
    }
    for (by, expected) in [
        (By::Http, late("http", unreached)),
        (By::Https, late("https", unreached)),
        (By::Tcp, format!("dial tcp {unreached}: i/o timeout")),
        (By::Grpc, format!("timeout: failed to connect service \"{unreached}\" within 20s: {why}")),
    ] {
        assert_eq!(given_up(by, unreached, async {}).await, failure(expected), "{by:?}");
    }
}

#[tokio::test]
async fn hostile_servers_are_bounded_by_time_and_size() {
    // Headers without an end.
    let endless = Server::does(|mut stream| async move {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\n").await);
        while stream.write_all(b"X-More: more and more and more\r\n").await.is_ok() {}
    })
    .await;
    assert!(matches!(endless.ask().await, ProbeAnswer::Failure(_)));
    // One header without an end.
    let long = Server::does(|mut stream| async move {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await);
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    assert!(matches!(long.ask().await, ProbeAnswer::Failure(_)));
    // A body without an end is left where it was enough.
    let flood = Server::does(|mut stream| async move {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await);
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    assert_eq!(flood.ask().await, ProbeAnswer::Success);
    // A body that stops to come.
    let stalled = Server::does(|mut stream| async move {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx").await);
        std::future::pending::<()>().await;
    })
    .await;
    let message = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    // How soon its headers are read is the machine's.
    let mut within = Duration::from_millis(300);
    let answer = loop {
        let answer = http::ask(&pod(), &stalled.probe("/", &[]), within).await;
        within *= 2;
        if within > ENOUGH || !matches!(answer, ProbeAnswer::Failure(_)) {
            break answer;
        }
    };
    assert_eq!(answer, ProbeAnswer::Errored { state: "failure", message: message.into() });
    // One that is broken off.
    let short = Server::says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx").await;
    let broken = ProbeAnswer::Errored { state: "failure", message: "unexpected EOF".into() };
    assert_eq!(short.ask().await, broken);
    for garbage in
        ["\x16\x03\x01 not http", "HTTP/9.9 200 OK\r\n\r\n", "SSH-2.0-x\r\n", "HTTP/1.1 20 OK\r\n\r\n"]
    {
        let server = Server::says(garbage).await;
        assert!(matches!(server.ask().await, ProbeAnswer::Failure(_)), "{garbage:?}");
        let answer = grpc::ask(&pod(), "127.0.0.1", server.address.port(), "", ENOUGH).await;
        assert!(matches!(answer, ProbeAnswer::Failure(_)), "{garbage:?}: {answer:?}");
        let answer = asked(By::Https, greets(garbage).await).await;
        assert!(matches!(answer, ProbeAnswer::Failure(_)), "{garbage:?}: {answer:?}");
    }
}

/// What libraries take without a bound ends a probe before its time is over.
#[tokio::test]
async fn a_server_that_goes_on_without_an_end_is_left_once_it_has_sent_too_much() {
    const WHY: &str = "the server has sent more than 524288 bytes";
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING_ACK: &[u8] = &[0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    type Case = (By, &'static [u8], &'static [u8], fn(SocketAddr) -> String);
    let cases: [Case; 3] = [
        (By::Http, b"", CONTINUE, |address| format!("Get \"http://{address}/\": {WHY}")),
        (By::Grpc, b"", PING_ACK, |address| {
            format!("error: failed to connect service at \"{address}\": {WHY}")
        }),
        (By::Grpc, SETTINGS, PING_ACK, |_| {
            format!("error: health rpc probe failed: rpc error: code = Unavailable desc = {WHY}")
        }),
    ];
    for (by, first, endless, expected) in cases {
        let server = Server::does(move |mut stream: TcpStream| async move {
            drop(stream.write_all(first).await);
            let more = endless.repeat(200);
            while stream.write_all(&more).await.is_ok() {}
        })
        .await;
        assert_eq!(asked(by, server.address).await, failure(expected(server.address)), "{by:?} {first:?}");
    }
}

#[tokio::test]
async fn ipv6_is_asked_too() {
    let any = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0);
    let server = Server::on(any, |mut stream: TcpStream| async move {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await);
    })
    .await;
    assert_eq!(server.ask().await, ProbeAnswer::Success);
    let host = format!("\r\nHost: [::1]:{}\r\n", server.address.port());
    assert!(server.heard.lock().await[0].contains(&host));
    assert_eq!(tcp(&pod(), "::1", server.address.port(), ENOUGH).await, ProbeAnswer::Success);
}

/// Whoever closes first, connections do not wait for their ports to be free, but for the few whose two ends meet on the way.
#[tokio::test]
async fn nothing_piles_up_in_time_wait() {
    const PROBES: usize = 50;
    let closing = Server::says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let staying = Server::does(|mut stream| async move {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
        drop(stream.read(&mut [0; 16]).await);
    })
    .await;
    for server in [&closing, &staying] {
        for _probe in 0..PROBES {
            assert_eq!(server.ask().await, ProbeAnswer::Success);
            let _any = tcp(&pod(), "127.0.0.1", server.address.port(), ENOUGH).await;
        }
    }
    let until = tokio::time::Instant::now() + ENOUGH;
    let ports = [closing.address.port(), staying.address.port()];
    // Each of the four kinds would be one for each probe.
    while waiting(&ports) > PROBES / 5 {
        assert!(tokio::time::Instant::now() < until, "{} wait", waiting(&ports));
        tokio::task::yield_now().await;
    }
}

/// Sockets of this namespace in TIME_WAIT to or from these ports.
fn waiting(ports: &[u16]) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_of = |end: &str| {
        let port = end.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
        port.is_some_and(|port| ports.contains(&port))
    };
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|words| words[3] == "06" && (is_of(words[1]) || is_of(words[2]))).count()
}

/// What a gRPC server does with a call.
#[derive(Clone, Copy)]
enum Health {
    Status(i32),
    Code(u32, &'static str),
    Http(u16),
    Long,
    Wrong,
    Never,
}

async fn health(does: Health) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, does));
    address
}

async fn serve(listener: TcpListener, does: Health) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                // What it has sent comes while the connection is looked at.
                tokio::spawn(answer(does, request, respond));
            }
        });
    }
}

/// What is said of a server that was not connected to within a second.
fn late_connection(address: SocketAddr) -> ProbeAnswer {
    failure(format!("timeout: failed to connect service \"{address}\" within 1s: context deadline exceeded"))
}

async fn answer(
    does: Health,
    mut request: ::http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<prost::bytes::Bytes>,
) {
    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
    assert_eq!(request.headers()["user-agent"], "kube-probe/1.36");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let mut asked = Vec::new();
    while let Some(part) = request.body_mut().data().await {
        asked.extend_from_slice(&part.unwrap());
    }
    assert_eq!(asked, b"\0\0\0\0\x06\x0a\x04some", "the service as field 1, with gRPC's head");
    let head = ::http::Response::builder().header("content-type", "application/grpc");
    let (body, code, message) = match does {
        Health::Http(status) => {
            drop(respond.send_response(head.status(status).body(()).unwrap(), true));
            return;
        }
        Health::Status(status) => (vec![0, 0, 0, 0, 2, 8, u8::try_from(status).unwrap()], 0, ""),
        Health::Code(code, message) => (Vec::new(), code, message),
        Health::Long => (vec![0; 60_000], 0, ""),
        Health::Wrong => (vec![1, 0, 0, 0, 2, 8, 1], 0, ""),
        Health::Never => return std::future::pending().await,
    };
    let Ok(mut stream) = respond.send_response(head.body(()).unwrap(), false) else { return };
    drop(stream.send_data(body.into(), false));
    let mut trailers = ::http::HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    trailers.insert("grpc-message", message.parse().unwrap());
    drop(stream.send_trailers(trailers));
}

#[tokio::test]
async fn a_health_service_says_how_it_is_in_the_kubelets_words() {
    for (does, expected) in [
        (Health::Status(1), Ok(())),
        (Health::Status(2), Err("service unhealthy (responded with \"NOT_SERVING\")")),
        (Health::Status(0), Err("service unhealthy (responded with \"UNKNOWN\")")),
        (
            Health::Code(5, "unknown%20service"),
            Err("error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"),
        ),
        (
            Health::Code(12, "no"),
            Err("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no"),
        ),
        (
            Health::Http(503),
            Err(
                "error: health rpc probe failed: rpc error: code = Unavailable desc = unexpected HTTP status code \
                 received from server: 503 (Service Unavailable)",
            ),
        ),
        (
            Health::Long,
            Err(
                "error: health rpc probe failed: rpc error: code = Internal desc = the answer has more than 4096 bytes",
            ),
        ),
        (
            Health::Wrong,
            Err("error: health rpc probe failed: rpc error: code = Internal desc = the answer is no message"),
        ),
    ] {
        let address = health(does).await;
        let answer = grpc::ask(&pod(), "127.0.0.1", address.port(), "some", ENOUGH).await;
        let expected = match expected {
            Ok(()) => ProbeAnswer::Success,
            Err(text) => ProbeAnswer::Failure(text.into()),
        };
        assert_eq!(answer, expected);
    }
}

/// A connection counts once the server has told its settings, and is made anew until there is no time left.
#[tokio::test]
async fn a_health_service_that_cannot_be_connected_to_is_late_whatever_is_wrong() {
    const WITHIN: Duration = Duration::from_secs(1);
    let (_bound, closed) = closed();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let servers = [
        ("nobody listens", closed),
        ("it says nothing", silent.local_addr().unwrap()),
        ("it ends the connection", Server::says("").await.address),
        ("it speaks another protocol", Server::says("SSH-2.0-x\r\n").await.address),
    ];
    let asked = servers.map(|(what, address)| async move {
        let answer = grpc::ask_again(&pod(), "127.0.0.1", address.port(), "some", WITHIN).await;
        assert_eq!(answer, late_connection(address), "{what}");
    });
    futures::future::join_all(asked).await;
}

#[tokio::test]
async fn a_health_service_that_never_answers_is_late_too() {
    let address = health(Health::Never).await;
    // How soon it is connected to is the machine's.
    let mut seconds = 1;
    let answer = loop {
        let within = Duration::from_secs(seconds);
        let answer = grpc::ask_again(&pod(), "127.0.0.1", address.port(), "some", within).await;
        if within > ENOUGH || !format!("{answer:?}").contains("failed to connect") {
            break answer;
        }
        seconds *= 2;
    };
    assert_eq!(answer, failure(format!("timeout: health rpc did not complete within {seconds}s")));
}

#[tokio::test]
async fn a_health_service_that_begins_late_is_asked_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        drop(listener.accept().await.unwrap());
        serve(listener, Health::Status(1)).await;
    });
    let answer = grpc::ask_again(&pod(), "127.0.0.1", address.port(), "some", ENOUGH).await;
    assert_eq!(answer, ProbeAnswer::Success);
}
