package powerdisk

import (
	"maps"
	"math/rand/v2"
)

const (
	pageSize   = 4096
	sectorSize = 512
)

// fileContent is the content of a file: as processes see it, and as it is durable on the disk.
type fileContent struct {
	live, disk fileImage
	// dirty are the pages that may differ between the two; resized means that the length may.
	dirty   map[int64]struct{}
	resized bool
}

// fileImage is a file's length and its pages by number. Pages are of pageSize bytes, never changed once they are in an image, and shared
// between images; one that is missing is zeros.
type fileImage struct {
	size  int64
	pages map[int64][]byte
}

func newContent() *fileContent {
	return &fileContent{live: fileImage{pages: map[int64][]byte{}}, disk: fileImage{pages: map[int64][]byte{}}, dirty: map[int64]struct{}{}}
}

// writeAt puts data at an offset.
func (c *fileContent) writeAt(data []byte, at int64) {
	for len(data) > 0 {
		number, from := at/pageSize, at%pageSize
		page := make([]byte, pageSize)
		copy(page, c.live.pages[number])
		n := copy(page[from:], data)
		c.live.pages[number] = page
		c.dirty[number] = struct{}{}
		data, at = data[n:], at+int64(n)
	}
	if at > c.live.size {
		c.live.size, c.resized = at, true
	}
}

// holds reports whether the file has all the pages of a range.
func (c *fileContent) holds(n, at int64) bool {
	for number := at / pageSize; number*pageSize < at+n; number++ {
		if c.live.pages[number] == nil {
			return false
		}
	}
	return true
}

// readAt fills buf from an offset and returns the number of bytes read.
func (c *fileContent) readAt(buf []byte, at int64) int {
	end := min(at+int64(len(buf)), c.live.size)
	n := 0
	for at < end {
		number, from := at/pageSize, at%pageSize
		part := min(pageSize-from, end-at)
		if page := c.live.pages[number]; page != nil {
			copy(buf[n:n+int(part)], page[from:from+part])
		} else {
			clear(buf[n : n+int(part)])
		}
		n, at = n+int(part), at+part
	}
	return n
}

// setSize truncates the file, or extends it with zeros.
func (c *fileContent) setSize(size int64) {
	for number := range c.live.pages {
		if number*pageSize >= size {
			delete(c.live.pages, number)
			c.dirty[number] = struct{}{}
		}
	}
	if last, from := size/pageSize, size%pageSize; from > 0 && size < c.live.size && c.live.pages[last] != nil {
		page := make([]byte, pageSize)
		copy(page, c.live.pages[last][:from])
		c.live.pages[last] = page
		c.dirty[last] = struct{}{}
	}
	c.live.size, c.resized = size, true
}

// syncPages makes what processes see durable.
func (c *fileContent) syncPages() {
	for number := range c.dirty {
		setPage(&c.disk, number, c.live.pages[number])
	}
	c.disk.size = c.live.size
	c.clearDirty()
}

// forgetDirty does what a failed sync does: the dirty pages will not be written again, and it is unknown which of them are on the disk.
func (c *fileContent) forgetDirty(rng *rand.Rand) {
	c.disk = c.losePower(rng, rng.Float64())
	c.clearDirty()
}

func (c *fileContent) clearDirty() {
	clear(c.dirty)
	c.resized = false
}

func setPage(m *fileImage, number int64, page []byte) {
	if page == nil {
		delete(m.pages, number)
	} else {
		m.pages[number] = page
	}
}

// losePower returns the content that the disk holds after a power loss: it keeps each part of the dirty data with the probability kept.
func (c *fileContent) losePower(rng *rand.Rand, kept float64) fileImage {
	out := fileImage{size: c.disk.size, pages: maps.Clone(c.disk.pages)}
	if c.resized && rng.Float64() < kept {
		out.size = c.live.size
		if grown := c.live.size - c.disk.size; grown > 0 && rng.IntN(2) == 0 {
			out.size = c.disk.size + rng.Int64N(grown+1)
		}
	}
	for number := range c.dirty {
		switch luck := rng.Float64(); {
		case luck >= kept:
		case luck < kept/4:
			out.pages[number] = tearPage(rng, out.pages[number], c.live.pages[number])
		default:
			setPage(&out, number, c.live.pages[number])
		}
	}
	// A page beyond the end is not a part of the file, and the bytes after the end in its last page read as zeros if the file grows again.
	for number, page := range out.pages {
		if end := out.size - number*pageSize; end <= 0 {
			delete(out.pages, number)
		} else if end < pageSize {
			short := make([]byte, pageSize)
			copy(short, page[:end])
			out.pages[number] = short
		}
	}
	return out
}

// tearPage mixes sectors of two pages.
func tearPage(rng *rand.Rand, before, after []byte) []byte {
	page := make([]byte, pageSize)
	copy(page, before)
	for at := 0; at < pageSize; at += sectorSize {
		if rng.IntN(2) == 0 {
			clear(page[at : at+sectorSize])
			if after != nil {
				copy(page[at:at+sectorSize], after[at:])
			}
		}
	}
	return page
}

// cloneImage copies an image, sharing its pages.
func (m fileImage) cloneImage() fileImage { return fileImage{size: m.size, pages: maps.Clone(m.pages)} }
