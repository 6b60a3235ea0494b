//! `/healthz` on a port of its own: kubeadm waits for it, and who watches the agent asks it. In plain HTTP, with nothing to be
//! learned from it. Source: `k8s.io/apiserver/pkg/server/healthz/healthz.go`, installed by `cmd/kubelet/app/server.go` with the
//! check `ping` alone, which `/metrics/slis` counts with those of the node's server.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use berth_core::server::{Check, Query, all_checks, measured, one_check};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use crate::{causes::with_causes, metrics::Metrics};

/// Between two tries to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// Connections at a time: for a further one that ends which has asked nothing for longest.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may be there: who asks twice asks anew.
const CONNECTION_WITHIN: Duration = Duration::from_secs(60);
/// How long a request may take to come.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);

/// Answers until the agent stops. An address that cannot be had is tried again.
pub async fn serve(address: SocketAddr, metrics: Metrics) {
    let mut told = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                tracing::debug!(%address, "healthz is answered");
                accept(&listener, HEADERS_WITHIN, &metrics).await;
            }
            Err(error) if !told => {
                tracing::warn!(error = with_causes(&error), %address, "listen for healthz; it is tried again");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

async fn accept(listener: &TcpListener, headers_within: Duration, metrics: &Metrics) {
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                connections.answer(connection, headers_within, metrics.clone());
                // What it has asked already is read before another one may take its place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::debug!(error = with_causes(&error), "accept a connection for healthz");
                return;
            }
        }
    }
}

/// Those that there are. They end with it.
#[derive(Debug, Default)]
struct Connections {
    tasks: JoinSet<()>,
    all: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    /// When it has asked something, or was made.
    heard: watch::Receiver<Instant>,
}

impl Connections {
    fn answer(&mut self, connection: TcpStream, headers_within: Duration, metrics: Metrics) {
        while self.tasks.try_join_next().is_some() {}
        self.all.retain(|connection| !connection.task.is_finished());
        if self.all.len() >= CONNECTIONS_MAX {
            self.end_the_most_silent();
        }
        let (asked, heard) = watch::channel(Instant::now());
        let answering = answer(connection, headers_within, asked, metrics);
        let task = self.tasks.spawn(async move {
            drop(tokio::time::timeout(CONNECTION_WITHIN, answering).await);
        });
        self.all.push(Connection { task, heard });
    }

    fn end_the_most_silent(&mut self) {
        let heard = |(_, connection): &(usize, &Connection)| *connection.heard.borrow();
        if let Some((at, _)) = self.all.iter().enumerate().min_by_key(heard) {
            self.all.swap_remove(at).task.abort();
        }
    }
}

async fn answer(
    connection: TcpStream,
    headers_within: Duration,
    asked: watch::Sender<Instant>,
    metrics: Metrics,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        asked.send_replace(Instant::now());
        let response = said(request.uri().path(), request.uri().query().unwrap_or_default(), &metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(headers_within);
    // Who breaks off has had the answer, or wants none.
    drop(server.serve_connection(TokioIo::new(connection), service).await);
}

/// Status and text of all checks, as a query asks for them, which are counted.
pub(crate) fn all(checks: &[Check], query: &str, metrics: &Metrics) -> (u16, String) {
    let query = Query::parse(query);
    let excluded: Vec<&str> = query.all("exclude").collect();
    metrics.checked(measured(checks, &excluded));
    all_checks(checks, &excluded, query.first("verbose").is_some())
}

fn said(path: &str, query: &str, metrics: &Metrics) -> Response<String> {
    let checks = [Check { name: "ping", failure: None }];
    let (status, text) = match path {
        "/healthz" => all(&checks, query, metrics),
        "/healthz/ping" => one_check(&checks[0]),
        _ => (404, "404 page not found\n".to_owned()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    use super::*;
    use crate::view::View;

    /// So long a request may take to come that only others end a connection.
    const NEVER: Duration = Duration::from_secs(3600);
    const LONG: Duration = Duration::from_secs(20);

    async fn listening(headers_within: Duration) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { accept(&listener, headers_within, &metrics()).await });
        address
    }

    fn metrics() -> Metrics {
        Metrics::new("n", View::default()).unwrap()
    }

    async fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.unwrap()
    }

    /// Asks on a connection that stays.
    async fn ask(connection: &mut TcpStream) {
        connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let read = timeout(LONG, connection.read_buf(&mut answer)).await.expect("an answer").unwrap();
            assert!(read > 0, "it was ended: {:?}", String::from_utf8_lossy(&answer));
        }
    }

    #[tokio::test]
    async fn it_says_ok_and_knows_nothing_else() {
        let address = listening(HEADERS_WITHIN).await;
        for (path, status, body) in [
            ("/healthz", "200 OK", "\r\n\r\nok"),
            ("/healthz/ping", "200 OK", "\r\n\r\nok"),
            ("/healthz?verbose", "200 OK", "[+]ping ok\nhealthz check passed\n"),
            ("/", "404 Not Found", "404 page not found\n"),
            ("/pods", "404 Not Found", "404 page not found\n"),
        ] {
            let mut connection = connect(address).await;
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            connection.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.unwrap();
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}\r\n")) && answer.ends_with(body),
                "{answer}"
            );
        }
    }

    #[test]
    fn checks_are_counted_where_all_are_asked_for() {
        let metrics = metrics();
        let excluded = "[+]ping excluded: ok\nhealthz check passed\n";
        for (path, query, text, count) in [
            ("/healthz/ping", "", "ok", 0),
            ("/healthz", "exclude=ping&verbose", excluded, 0),
            ("/healthz", "exclude=ping", "ok", 0),
            ("/healthz", "", "ok", 1),
            ("/healthz", "verbose=1", "[+]ping ok\nhealthz check passed\n", 2),
            ("/healthz", "verbos%65&exclude=x", "no matches for \"x\"\nhealthz check passed\n", 3),
            ("/healthz/x", "", "404 page not found\n", 3),
        ] {
            let told = said(path, query, &metrics);
            let status = if path == "/healthz/x" { 404 } else { 200 };
            assert!(told.status() == status && told.body().ends_with(text), "{path} {query}: {told:?}");
            let shown = metrics.health_text();
            let labels = "name=\"ping\",status=\"success\",type=\"healthz\"";
            let line = format!("kubernetes_healthchecks_total{{{labels}}} {count}\n");
            assert_eq!(shown.contains(&line), count > 0, "{path} {query}:\n{shown}");
            assert_eq!(shown.contains("kubernetes_healthcheck"), count > 0, "{path} {query}:\n{shown}");
        }
    }

    #[tokio::test]
    async fn who_asks_with_many_others_at_once_is_answered() {
        let address = listening(NEVER).await;
        // All of them wait to be accepted, since nothing else runs meanwhile.
        let asked = (0..2 * CONNECTIONS_MAX).map(|_| {
            let mut connection = std::net::TcpStream::connect(address).unwrap();
            std::io::Write::write_all(&mut connection, b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
            connection.set_nonblocking(true).unwrap();
            TcpStream::from_std(connection).unwrap()
        });
        for mut connection in asked.collect::<Vec<_>>() {
            let mut answer = String::new();
            timeout(LONG, connection.read_to_string(&mut answer)).await.expect("an answer").unwrap();
            assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        }
    }

    #[tokio::test]
    async fn connections_that_ask_nothing_keep_nobody_from_an_answer() {
        let address = listening(NEVER).await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(connect(address).await);
        }
        ask(&mut connect(address).await).await;
        let ended = timeout(LONG, silent[0].read_u8()).await.expect("it has its place no more");
        ended.unwrap_err();
    }

    #[tokio::test]
    async fn the_connection_that_has_asked_nothing_for_longest_ends_first() {
        let address = listening(NEVER).await;
        let mut first = connect(address).await;
        let mut silent = Vec::new();
        for _ in 2..CONNECTIONS_MAX {
            silent.push(connect(address).await);
        }
        // When the last one has its answer, all of them are there.
        let mut last = connect(address).await;
        ask(&mut last).await;
        ask(&mut first).await;
        ask(&mut connect(address).await).await;
        let ended = timeout(LONG, silent[0].read_u8()).await.expect("it has its place no more");
        ended.unwrap_err();
        ask(&mut first).await;
        ask(&mut last).await;
    }

    #[tokio::test]
    async fn a_request_that_does_not_come_ends_its_connection() {
        let address = listening(Duration::from_millis(50)).await;
        let mut connection = connect(address).await;
        // It may have ended already.
        drop(connection.write_all(b"GET /healthz HTTP/1.1\r\n").await);
        let mut answer = Vec::new();
        drop(timeout(LONG, connection.read_to_end(&mut answer)).await.expect("an end"));
        assert!(!String::from_utf8_lossy(&answer).contains("200 OK"), "{answer:?}");
    }
}
