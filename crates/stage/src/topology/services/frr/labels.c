/* Lets zebra use MPLS labels on a kernel without MPLS, while another router forwards the packets.
 *
 * The library is loaded before the C library (ld.so(8), LD_PRELOAD), only into zebra. It
 * - makes /proc/sys/net/mpls exist for zebra, which detects MPLS by it;
 * - replaces requests to add a route with labels by requests to delete the route without labels, so that the kernel
 *   sends no packet without its labels;
 * - replaces the kernel's errors about labels by success.
 * Only rtnetlink(7) messages are modified.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

static int kind_of(const struct rtattr *attribute)
{
	return attribute->rta_type & NLA_TYPE_MASK;
}

static int has_labels(const struct rtattr *attribute, int length)
{
	for (; RTA_OK(attribute, length); attribute = RTA_NEXT(attribute, length)) {
		const struct rtnexthop *hop = RTA_DATA(attribute);
		int rest = RTA_PAYLOAD(attribute);

		if (kind_of(attribute) == RTA_ENCAP)
			return 1;
		if (kind_of(attribute) != RTA_MULTIPATH)
			continue;
		while (rest >= (int)sizeof(*hop) && RTNH_OK(hop, rest)) {
			if (has_labels(RTNH_DATA(hop), hop->rtnh_len - sizeof(*hop)))
				return 1;
			rest -= RTNH_ALIGN(hop->rtnh_len);
			hop = RTNH_NEXT(hop);
		}
	}
	return 0;
}

/* Attributes that identify the route to delete. The kernel would compare all others with its route. */
static int identifies_route(int kind)
{
	return kind == RTA_DST || kind == RTA_PRIORITY || kind == RTA_TABLE;
}

static void delete_instead(struct nlmsghdr *message)
{
	struct rtmsg *route = NLMSG_DATA(message);
	struct rtattr *attribute = RTM_RTA(route);
	int length = RTM_PAYLOAD(message);

	message->nlmsg_type = RTM_DELROUTE;
	message->nlmsg_flags &= ~(NLM_F_CREATE | NLM_F_REPLACE);
	for (; RTA_OK(attribute, length); attribute = RTA_NEXT(attribute, length))
		if (!identifies_route(kind_of(attribute)))
			attribute->rta_type = RTA_PAD;
}

int stat(const char *path, struct stat *found)
{
	int (*original)(const char *, struct stat *) = dlsym(RTLD_NEXT, "stat");

	return original(strcmp(path, "/proc/sys/net/mpls") ? path : "/proc/sys/net", found);
}

ssize_t sendmsg(int socket, const struct msghdr *header, int flags)
{
	ssize_t (*original)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
	const struct sockaddr *to = header->msg_name;

	if (to && to->sa_family == AF_NETLINK && header->msg_iovlen == 1) {
		struct nlmsghdr *message = header->msg_iov->iov_base;
		unsigned int rest = header->msg_iov->iov_len;

		for (; NLMSG_OK(message, rest); message = NLMSG_NEXT(message, rest)) {
			struct rtmsg *route = NLMSG_DATA(message);

			if (message->nlmsg_type != RTM_NEWROUTE || message->nlmsg_len < NLMSG_LENGTH(sizeof(*route)))
				continue;
			if (route->rtm_family != AF_INET && route->rtm_family != AF_INET6)
				continue;
			if (has_labels(RTM_RTA(route), RTM_PAYLOAD(message)))
				delete_instead(message);
		}
	}
	return original(socket, header, flags);
}

ssize_t recvmsg(int socket, struct msghdr *header, int flags)
{
	ssize_t (*original)(int, struct msghdr *, int) = dlsym(RTLD_NEXT, "recvmsg");
	ssize_t received = original(socket, header, flags);
	const struct sockaddr *from = header->msg_name;
	struct nlmsghdr *message;
	unsigned int rest;

	if (received <= 0 || !from || from->sa_family != AF_NETLINK || header->msg_iovlen != 1)
		return received;
	message = header->msg_iov->iov_base;
	rest = (size_t)received < header->msg_iov->iov_len ? (size_t)received : header->msg_iov->iov_len;
	for (; NLMSG_OK(message, rest); message = NLMSG_NEXT(message, rest)) {
		struct nlmsgerr *answer = NLMSG_DATA(message);
		int kind;

		if (message->nlmsg_type != NLMSG_ERROR || message->nlmsg_len < NLMSG_LENGTH(sizeof(*answer)))
			continue;
		kind = answer->msg.nlmsg_type;
		if (kind != RTM_NEWROUTE && kind != RTM_DELROUTE)
			continue;
		if (answer->error == -EOPNOTSUPP || (kind == RTM_DELROUTE && answer->error == -ESRCH))
			answer->error = 0;
	}
	return received;
}
