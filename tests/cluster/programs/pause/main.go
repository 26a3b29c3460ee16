// Holds a pod's namespaces open until it is told to end, and takes away the processes that were left to it.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if process, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); process <= 0 {
				break
			}
		}
	}
}
