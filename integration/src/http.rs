//! Just enough of HTTP/1.0 to push to a registry and to ask a pod: one request per connection.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// An API server gives a request up after a minute, and says so: until then it may have to wait for a processor.
const ANSWER_LIMIT: Duration = Duration::from_secs(75);
/// Of a page that is asked for again.
const PAGE_LIMIT: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
    head: String,
}

impl Answer {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Asks a pod for a page, as who asks again: where a connection leads to a pod that goes meanwhile, nobody answers.
///
/// # Errors
/// No connection, or no answer that makes sense.
pub fn page(at: SocketAddr, path: &str) -> Result<Answer> {
    exchange(at, PAGE_LIMIT, "GET", path, "", &[]).with_context(|| format!("GET http://{at}{path}"))
}

/// Asks a server that answers in its own time.
///
/// # Errors
/// No connection, or no answer that makes sense.
pub fn get(at: SocketAddr, path: &str) -> Result<Answer> {
    request(at, "GET", path, "", &[])
}

/// Sends one request; `content_type` is left out when empty.
///
/// # Errors
/// No connection, or no answer that makes sense.
pub fn request(at: SocketAddr, method: &str, path: &str, content_type: &str, body: &[u8]) -> Result<Answer> {
    exchange(at, ANSWER_LIMIT, method, path, content_type, body)
        .with_context(|| format!("{method} http://{at}{path}"))
}

fn exchange(
    at: SocketAddr,
    limit: Duration,
    method: &str,
    path: &str,
    content_type: &str,
    body: &[u8],
) -> Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&at, CONNECT_LIMIT)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let kind =
        if content_type.is_empty() { String::new() } else { format!("Content-Type: {content_type}\r\n") };
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {at}\r\nContent-Length: {length}\r\n{kind}\r\n")?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer)
}

pub(crate) fn parse(answer: &[u8]) -> Result<Answer> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = answer.windows(END.len()).position(|window| window == END) else {
        bail!("no head in an answer of {} bytes", answer.len());
    };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap_or_default().parse().context("no status in the answer")?;
    Ok(Answer { status, body: answer[end + END.len()..].to_vec(), head })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart() {
        let answer = parse(b"HTTP/1.1 202 Accepted\r\nlocation: /v2/x?y\r\n\r\nbody").unwrap();
        assert_eq!(
            (answer.status, answer.header("Location"), answer.text().as_str()),
            (202, Some("/v2/x?y"), "body")
        );
    }

    #[test]
    fn half_an_answer_is_none() {
        for half in [&b""[..], b"HTTP/1.1 200 OK\r\n", b"nonsense\r\n\r\n"] {
            parse(half).unwrap_err();
        }
    }
}
