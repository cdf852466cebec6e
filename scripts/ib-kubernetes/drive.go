// Loads the UFM plug-in of ib-kubernetes, as its daemon does, and adds and removes GUIDs with it
// from 8 goroutines. Ends with status 1 unless exactly those that were added and not removed are
// listed.
//
// usage: drive PLUGIN GUIDS
package main

import (
	"fmt"
	"net"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/Mellanox/ib-kubernetes/pkg/sm"
	"github.com/Mellanox/ib-kubernetes/pkg/sm/plugins"
)

const (
	workers = 8
	pkeys   = 32
	// As long as ib-kubernetes repeats a call that fails.
	patience = 26 * time.Second
)

func main() {
	if err := drive(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "drive:", err)
		os.Exit(1)
	}
}

func drive(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: drive PLUGIN GUIDS")
	}
	guids, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	zerolog.SetGlobalLevel(zerolog.WarnLevel)
	initialize, err := sm.NewPluginLoader().LoadPlugin(args[0], sm.InitializePluginFunc)
	if err != nil {
		return err
	}
	client, err := initialize()
	if err != nil {
		return err
	}
	if err := client.Validate(); err != nil {
		return err
	}
	calls := &calls{}
	began := time.Now()
	if err := change(client, guids, calls); err != nil {
		return err
	}
	took := time.Since(began)
	sort.Slice(calls.times, func(a, b int) bool { return calls.times[a] < calls.times[b] })
	part := func(of int) time.Duration { return calls.times[(len(calls.times)-1)*of/100] }
	fmt.Printf("%s %s: %d calls in %.1f s, %d repeated; p50 %v, p99 %v, longest %v\n",
		client.Name(), client.Spec(), len(calls.times), took.Seconds(), calls.repeated,
		part(50), part(99), part(100))
	return check(client, guids)
}

// Whether the GUID with this number is removed again.
func isRemoved(number int) bool { return number%3 == 0 }

func guid(number int) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, 0, 0x10, byte(number >> 16), byte(number >> 8), byte(number)}
}

func pkey(number int) int { return 0x10 + number%pkeys }

// Adds all GUIDs one by one, and removes some.
func change(client plugins.SubnetManagerClient, guids int, calls *calls) error {
	failures := make(chan error, workers)
	for worker := 0; worker < workers; worker++ {
		go func(worker int) {
			for number := worker; number < guids; number += workers {
				one := []net.HardwareAddr{guid(number)}
				add := func() error { return client.AddGuidsToPKey(pkey(number), one) }
				remove := func() error { return client.RemoveGuidsFromPKey(pkey(number), one) }
				err := calls.repeat(add)
				if err == nil && isRemoved(number) {
					err = calls.repeat(remove)
				}
				if err != nil {
					failures <- err
					return
				}
			}
			failures <- nil
		}(worker)
	}
	var failed error
	for worker := 0; worker < workers; worker++ {
		if err := <-failures; err != nil {
			failed = err
		}
	}
	return failed
}

// Compares what is listed with what was acknowledged.
func check(client plugins.SubnetManagerClient, guids int) error {
	list, err := client.ListGuidsInUse()
	if err != nil {
		return err
	}
	lost, returned := 0, 0
	for number := 0; number < guids; number++ {
		key, isThere := list[guid(number).String()]
		switch {
		case isRemoved(number) && isThere:
			returned++
		case !isRemoved(number) && key != fmt.Sprintf("0x%x", pkey(number)):
			lost++
		}
	}
	fmt.Printf("%d listed: %d lost, %d returned\n", len(list), lost, returned)
	if lost+returned > 0 {
		return fmt.Errorf("the list differs from what was acknowledged")
	}
	return nil
}

// How long each call took, and how many were repeated.
type calls struct {
	mutex    sync.Mutex
	times    []time.Duration
	repeated int
}

// Makes a call until it succeeds or patience ends.
func (calls *calls) repeat(call func() error) error {
	for since := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		began := time.Now()
		err := call()
		took := time.Since(began)
		calls.mutex.Lock()
		calls.times = append(calls.times, took)
		if err != nil {
			calls.repeated++
		}
		calls.mutex.Unlock()
		if err == nil || time.Since(since) > patience {
			return err
		}
	}
}
