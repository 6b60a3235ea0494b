//! The headers of a stream.

/// Between values of one name, as the protocol joins them.
const SEPARATOR: char = '\0';

/// A list of names in lower case and their values. Several values of one name are one text, joined by NUL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

/// A header block that says nothing. Its stream is ended; the connection goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Headers {
    /// These headers and one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Headers {
        self.0.push((name.to_ascii_lowercase(), value.to_owned()));
        self
    }

    /// The first value of a name, which is given in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values(name).next()
    }

    /// All values of a name, which is given in lower case.
    pub fn values<'h>(&'h self, name: &str) -> impl Iterator<Item = &'h str> {
        let value = self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        value.into_iter().flat_map(|value| value.split(SEPARATOR))
    }

    /// Names and values in their order, values as they are joined.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Reads a header block after decompression.
    pub(super) fn decode(block: &[u8], headers_max: usize) -> Result<Headers, Malformed> {
        let mut rest = block;
        let count = length(&mut rest)?;
        if count > headers_max {
            return Err(Malformed);
        }
        let mut headers: Vec<(String, String)> = Vec::with_capacity(count);
        for _header in 0..count {
            let (name, value) = (text(&mut rest)?, text(&mut rest)?);
            let is_known = headers.iter().any(|(known, _)| known == name);
            if name.is_empty() || is_known || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return Err(Malformed);
            }
            headers.push((name.to_owned(), value.to_owned()));
        }
        if rest.is_empty() { Ok(Headers(headers)) } else { Err(Malformed) }
    }

    /// The header block before compression.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut block = Vec::new();
        push_length(self.0.len(), &mut block);
        for (name, value) in &self.0 {
            for text in [name, value] {
                push_length(text.len(), &mut block);
                block.extend_from_slice(text.as_bytes());
            }
        }
        block
    }
}

fn length(rest: &mut &[u8]) -> Result<usize, Malformed> {
    let (length, after) = rest.split_first_chunk::<4>().ok_or(Malformed)?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*length)).or(Err(Malformed))
}

fn text<'b>(rest: &mut &'b [u8]) -> Result<&'b str, Malformed> {
    let len = length(rest)?;
    let (text, after) = rest.split_at_checked(len).ok_or(Malformed)?;
    *rest = after;
    std::str::from_utf8(text).or(Err(Malformed))
}

fn push_length(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let headers =
            Headers::default().with("streamType", "data").with("port", "80\x0081").with("empty", "");
        let block = headers.encode();
        assert_eq!(&block[..22], b"\0\0\0\x03\0\0\0\x0astreamtype\0\0\0\x04");
        assert_eq!(Headers::decode(&block, 3), Ok(headers.clone()));
        assert_eq!(headers.get("streamtype"), Some("data"));
        assert_eq!(headers.values("port").collect::<Vec<_>>(), ["80", "81"]);
        assert_eq!(headers.get("empty"), Some(""));
        assert_eq!(headers.get("other"), None);
    }

    #[test]
    fn blocks_that_say_nothing_are_refused() {
        let good = Headers::default().with("port", "80").encode();
        for end in 0..good.len() {
            assert_eq!(Headers::decode(&good[..end], 9), Err(Malformed), "cut at {end}");
        }
        let long = [good.as_slice(), b"x"].concat();
        assert_eq!(Headers::decode(&long, 9), Err(Malformed), "bytes follow");
        assert_eq!(Headers::decode(&good, 0), Err(Malformed), "too many");
        for (what, block) in [
            ("upper case", b"\0\0\0\x01\0\0\0\x01A\0\0\0\0".as_slice()),
            ("no name", b"\0\0\0\x01\0\0\0\0\0\0\0\0"),
            ("twice", b"\0\0\0\x02\0\0\0\x01a\0\0\0\0\0\0\0\x01a\0\0\0\0"),
            ("not UTF-8", b"\0\0\0\x01\0\0\0\x01a\0\0\0\x01\xff"),
            ("a huge count", b"\xff\xff\xff\xff"),
            ("a huge length", b"\0\0\0\x01\xff\xff\xff\xffa"),
        ] {
            assert_eq!(Headers::decode(block, 9), Err(Malformed), "{what}");
        }
    }
}
