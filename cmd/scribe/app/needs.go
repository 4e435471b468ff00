package app

// Needs are what a process takes of its machine and of other machines, by the flags that say so.
type Needs struct {
	// Folders are kept by the process alone.
	Folders []Need
	// Addresses are listened on, HOST:PORT.
	Addresses []Need
	// Socket is the path of a Unix socket; empty = none.
	Socket string
	// Servers are processes that must be reached: URLs, or several of one kind separated by commas.
	Servers []Need
	// Blobs: the process reads or writes the store of payloads, or deletes there.
	Blobs bool
	// Memory is what the process is made to stay below, in bytes.
	Memory int64
}

// Need is a value with the flag that says it.
type Need struct{ Flag, Value string }

// Needs returns what a process with this configuration, which is valid, takes.
func (c Config) Needs() Needs {
	c = c.asNode()
	n := Needs{Socket: c.Socket, Blobs: c.needsBlobs(), Memory: c.MemoryLimit(), Addresses: []Need{{"--listen", c.Listen}}}
	if c.needsData() {
		n.Folders = append(n.Folders, Need{"--data", c.Data})
	}
	if dir := c.spoolDir(); c.Has(Scribed) && dir != "" {
		n.Folders = append(n.Folders, Need{"--spool", dir})
	}
	if c.Flight != "" {
		n.Addresses = append(n.Addresses, Need{"--flight", c.Flight})
	}
	if c.Node != "" {
		place := c.nodePlace()
		n.Addresses = append(n.Addresses, Need{"--cluster", place.etcdClient()}, Need{"--cluster", place.etcdPeer()})
	}
	if c.needsControl() && !c.Has(ControlPlane) {
		n.Servers = append(n.Servers, Need{"--control", c.Control})
	}
	if c.usesMetalog() && !c.Has(Metalog) {
		n.Servers = append(n.Servers, Need{"--metalog", c.Metalog})
	}
	if c.Has(Scribed) && !c.Has(WriteProxy) {
		n.Servers = append(n.Servers, Need{"--upstream", c.Upstream})
	}
	return n
}
